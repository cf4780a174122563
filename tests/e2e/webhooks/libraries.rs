//! The receivers of `docs/webhooks.md`, executed with the official Standard Webhooks libraries.

use std::sync::Once;

use serde_json::{Value, json};
use tokio::process::Command;

use super::{create, run_of, stage_of};
use crate::support::node::NodeProject;
use crate::support::peer::{ask, environment};
use crate::support::receiver::Receiver;
use crate::support::repository::repository_file;
use crate::support::{Sqlite, skipped};

const PACKAGE: &str = "standardwebhooks==1.1.0";
static NODE: NodeProject = NodeProject::at("tests/clients/webhooks");
static NO_PYTHON: Once = Once::new();

/// The first block of code in this language.
fn snippet(language: &str) -> String {
    let page = std::fs::read_to_string(repository_file("docs/webhooks.md")).unwrap();
    let (_, code) = page.split_once(&format!("```{language}\n")).unwrap();
    code.split_once("```").unwrap().0.to_owned()
}

/// A secret, and calls: deliveries that it signed, each followed by one with another body.
async fn signed_deliveries() -> (String, Value) {
    let stage = stage_of(Sqlite).await.unwrap();
    let receiver = Receiver::start().await;
    let hook = create(&stage.admin, &receiver, &json!({"payload": "full"})).await;
    for number in 0..3 {
        run_of(&stage, &format!("m-{number}")).await;
    }
    let received = receiver.wait_for(3).await;
    let calls = received.iter().flat_map(|one| {
        let forged = one.text.replace("run.completed", "run.failed");
        [&one.text, &forged].map(|body| json!({"headers": one.headers, "body": body}))
    });
    let secret = hook["secret"].as_str().unwrap();
    (secret.to_owned(), json!(calls.collect::<Vec<_>>()))
}

fn expected() -> Value {
    json!([
        "run.completed",
        null,
        "run.completed",
        null,
        "run.completed",
        null
    ])
}

#[tokio::test]
async fn python_library_verifies_deliveries() {
    let Some(installed) = environment(PACKAGE, &[PACKAGE]).await else {
        let why = "standardwebhooks could not be installed";
        return skipped(&NO_PYTHON, "python", why);
    };
    let code = snippet("python")
        + "\nimport sys\n\
           def kind(call):\n    \
               message = verified(call['headers'], call['body'].encode())\n    \
               return message and message['type']\n\
           print(json.dumps([kind(call) for call in json.load(sys.stdin)]))\n";
    let (secret, calls) = signed_deliveries().await;
    let mut python = Command::new(installed.join("bin/python"));
    let python = python.args(["-c", &code]).env("WEBHOOK_SECRET", secret);
    assert_eq!(ask(python, &calls).await, expected());
}

#[tokio::test]
async fn node_library_verifies_deliveries() {
    let built = or_skip!(NODE.built("node").await);
    let code = snippet("js")
        + "\nconst { readFileSync } = await import('node:fs');\n\
           const calls = JSON.parse(readFileSync(0, 'utf8'));\n\
           const kinds = calls.map(({ headers, body }) => verified(headers, body)?.type ?? null);\n\
           console.log(JSON.stringify(kinds));\n";
    let (secret, calls) = signed_deliveries().await;
    let mut node = Command::new("node");
    let node = node
        .args(["--input-type=module", "-e", &code])
        .current_dir(built);
    assert_eq!(
        ask(node.env("WEBHOOK_SECRET", secret), &calls).await,
        expected()
    );
}
