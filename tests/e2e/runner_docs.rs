//! The snippets of `docs/runners/signatures.md`, executed with the libraries that they name.

use std::sync::Once;

use chrono::Utc;
use runner_kit::signature::SigningSecret;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::node::NodeProject;
use crate::support::peer::{ask, environment};
use crate::support::repository::repository_file;
use crate::support::runner::SECRET;
use crate::support::skipped;

const PACKAGE: &str = "standardwebhooks==1.1.0";
static NODE: NodeProject = NodeProject::at("tests/clients/webhooks");
static NO_PYTHON: Once = Once::new();

/// The first block of code in this language.
fn snippet(language: &str) -> String {
    let page = std::fs::read_to_string(repository_file("docs/runners/signatures.md")).unwrap();
    let start = format!("```{language}\n");
    let (_, code) = page.split_once(&start).unwrap();
    code.split_once("```").unwrap().0.to_owned()
}

/// Headers and body of one call.
fn call(secret: &str, id: &str, age_seconds: i64, body: &str) -> Value {
    let secret: SigningSecret = secret.parse().unwrap();
    let at = Utc::now().timestamp() - age_seconds;
    json!({
        "headers": {
            "webhook-id": id, "webhook-timestamp": at.to_string(),
            "webhook-signature": secret.sign(id, at, body.as_bytes()),
        },
        "body": body,
    })
}

/// Calls, and the status with which each must be refused.
fn calls() -> (Value, Value) {
    const OTHER: &str = "whsec_ZmVkY2JhOTg3NjU0MzIxMGZlZGNiYTk4NzY1NDMyMTA=";
    let run = r#"{"context": {"input": {"text": "你好"}}}"#;
    let mut tampered = call(SECRET, "run_2", 0, run);
    tampered["body"] = json!("{}");
    let mut malformed = call(SECRET, "run_3", 0, run);
    malformed["headers"]["webhook-signature"] = json!("v1");
    let rows = [
        (call(SECRET, "list_1", 0, ""), Value::Null),
        (call(SECRET, "run_1", 0, run), Value::Null),
        (call(SECRET, "run_1", 0, run), json!(409)),
        (tampered, json!(401)),
        (malformed, json!(401)),
        (call(SECRET, "run_4", 3600, run), json!(401)),
        (call(SECRET, "run_5", -3600, run), json!(401)),
        (call(OTHER, "run_6", 0, run), json!(401)),
        (json!({"headers": {}, "body": run}), json!(401)),
        // A refused call must not occupy its id.
        (call(SECRET, "run_2", 0, run), Value::Null),
    ];
    let (calls, statuses): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
    (json!(calls), json!(statuses))
}

#[tokio::test]
async fn python_snippet_refuses_wrong_signatures() {
    let Some(installed) = environment(PACKAGE, &[PACKAGE]).await else {
        skipped(
            &NO_PYTHON,
            "python",
            "standardwebhooks could not be installed",
        );
        return;
    };
    let code = snippet("python")
        + "\nimport json, sys\n\
           calls = json.load(sys.stdin)\n\
           print(json.dumps([refusal(one['headers'], one['body'].encode()) for one in calls]))\n";
    let (calls, statuses) = calls();
    let mut python = Command::new(installed.join("bin/python"));
    let answer = ask(
        python.args(["-c", &code]).env("RUNNER_SECRET", SECRET),
        &calls,
    )
    .await;
    assert_eq!(answer, statuses);
}

#[tokio::test]
async fn node_snippet_refuses_wrong_signatures() {
    let built = or_skip!(NODE.built("node").await);
    let code = snippet("js")
        + "\nconst { readFileSync } = await import('node:fs');\n\
           const calls = JSON.parse(readFileSync(0, 'utf8'));\n\
           const refusals = calls.map(({ headers, body }) => refusal(headers, body) ?? null);\n\
           console.log(JSON.stringify(refusals));\n";
    let (calls, statuses) = calls();
    let mut node = Command::new("node");
    let node = node
        .args(["--input-type=module", "-e", &code])
        .current_dir(built);
    let answer = ask(node.env("RUNNER_SECRET", SECRET), &calls).await;
    assert_eq!(answer, statuses);
}
