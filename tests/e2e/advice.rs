//! Advice of least rights: each grant with its use, and policies checked against past calls.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::client::{Client, message};
use crate::support::held::HeldRun;
use crate::support::programs::runnel;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{CommandOutput, Engine, OwnStage, Postgres, Sqlite, TempDirectory, run};

const CATALOG: &str = r#"
[[model_providers]]
name = "script"
kind = "scripted"
[[models]]
model_id = "used"
provider = "script"
[[models]]
model_id = "idle"
provider = "script"
[[tools]]
tool_name = "search"
url = "https://tools.example/search"
[[tools]]
tool_name = "launch"
url = "https://tools.example/launch"
[[tools]]
tool_name = "closed"
url = "https://tools.example/closed"
"#;

/// An agent with wide rights, and the calls of one ended run.
async fn stage(engine: Engine) -> Option<(OwnStage, Client, String)> {
    let mut wide = manifest(RUNNER_ID);
    wide["permissions"] = json!({
        "models": ["invoke", "count_tokens"], "tools": ["detail", "call"], "history": ["page", "search"],
        "state": ["conversation", "actor"], "storage": ["plugin"],
    });
    let runner = StubRunner::start_as(wide).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    let configure = |config: &mut crate::support::gateway::Config| {
        CATALOG.clone_into(&mut config.rest);
    };
    let stage = OwnStage::of(engine, runner, configure).await?;
    let admin = stage.admin.clone();
    let agent = json!({
        "name": "wide", "event_types": ["test.event"], "runner_id": RUNNER_ID,
        "resource_policy": {
            "models": "*", "tools": ["search", "launch"], "storage": ["plugin"], "history": ["page", "search"],
        },
        "state_policy": {"enabled": true, "scopes": ["conversation", "actor"]},
    });
    let agent = admin.create("/v1/agents", &agent).await.expect(201).body;
    let mut event = message("m-1");
    event["event_type"] = json!("test.event");
    let held = HeldRun::start(&stage, &event).await;
    let count = json!({"messages": [{"role": "user", "content": "hi"}]});
    let counted = held.call("/models/used/count-tokens", &count).await;
    counted.expect(200);
    for _ in 0..2 {
        held.get("/tools/search").await.expect(200);
    }
    held.get("/tools/closed").await.expect(403);
    for key in ["a", "b"] {
        let path = format!("/state/conversation/{key}");
        held.put(&path, &json!(1)).await.expect(200);
    }
    held.get("/history").await.expect(200);
    held.end(&stage).await;
    Some((stage, admin, agent["id"].as_str().unwrap().to_owned()))
}

/// The lists that an advice would replace.
fn changes(advice: &Value) -> Value {
    let changes = advice["changes"].as_array().unwrap().iter();
    changes
        .map(|one| {
            (
                one["path"].as_str().unwrap().to_owned(),
                one["value"].clone(),
            )
        })
        .collect()
}

#[rstest]
#[tokio::test]
async fn advises_used_rights_and_checks_policies(#[values(Sqlite, Postgres)] engine: Engine) {
    let Some((_stage, admin, id)) = stage(engine).await else {
        return;
    };
    let advice = admin
        .get(&format!("/v1/agents/{id}/advice"))
        .await
        .expect(200)
        .body;
    assert_eq!(advice["runs"], 1, "{advice}");
    assert_eq!(
        changes(&advice),
        json!({
            "/resource_policy/models": ["used"], "/resource_policy/tools": ["search"],
            "/resource_policy/storage": [], "/resource_policy/history": ["page"],
            "/state_policy/scopes": ["conversation"],
        })
    );
    let uses = |entry: &str| {
        let grants = advice["grants"].as_array().unwrap().iter();
        let of_entry = grants.filter(|one| one["entry"] == entry);
        of_entry
            .map(|one| one["calls"].as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!((uses("conversation"), uses("launch")), (2, 0), "{advice}");
    assert_eq!(advice["denials"][0]["resource"], "closed", "{advice}");

    let check = json!({"resource_policy": {"tools": ["closed"], "history": ["page"]}});
    let path = format!("/v1/agents/{id}/policy-check");
    let differs = admin
        .call(Method::POST, &path, &check)
        .await
        .expect(200)
        .body;
    let targets = |member: &str| {
        let calls = differs[member].as_array().unwrap().iter();
        let targets = calls.map(|one| one["resource"].as_str().unwrap().to_owned());
        let mut targets: Vec<_> = targets.collect();
        targets.sort();
        targets
    };
    assert_eq!(targets("denied"), ["search", "used"], "{differs}");
    assert_eq!(targets("allowed"), ["closed"], "{differs}");

    let future = admin
        .get(&format!("/v1/agents/{id}/advice?since=99999999999"))
        .await;
    assert_eq!(
        future.expect(400).body["error"]["details"]["pointer"],
        "/since"
    );
}

async fn command(client: &Client, directory: &TempDirectory, arguments: &[&str]) -> CommandOutput {
    let mut command = Command::new(runnel());
    command
        .args(arguments)
        .current_dir(directory.file(""))
        .env("RUNNEL_URL", &client.url)
        .env("RUNNEL_API_KEY", &client.key);
    run(&mut command).await.exited(0)
}

#[tokio::test]
async fn commands_apply_advice_and_check_files() {
    let (_stage, admin, id) = stage(Sqlite).await.unwrap();
    let directory = TempDirectory::new();
    let applied = command(&admin, &directory, &["agents", "advise", "wide", "--apply"]).await;
    assert!(
        applied
            .stdout
            .contains("resource_policy.tools = [\"search\"]"),
        "{}",
        applied.stdout
    );
    let agent = admin
        .get(&format!("/v1/agents/{id}"))
        .await
        .expect(200)
        .body;
    assert_eq!(
        agent["resource_policy"]["models"],
        json!(["used"]),
        "{agent}"
    );
    assert_eq!(agent["version"], 2, "{agent}");

    let mut wider = agent;
    wider["resource_policy"]["tools"] = json!(["search", "closed"]);
    std::fs::write(directory.file("wider.json"), wider.to_string()).unwrap();
    let arguments = [
        "explain",
        "--agent",
        "wide",
        "--policy",
        "wider.json",
        "--since",
        "1h",
    ];
    let checked = command(&admin, &directory, &arguments).await;
    assert!(
        checked.stdout.contains("would be allowed"),
        "{}",
        checked.stdout
    );
    assert!(
        !checked.stdout.contains("would be denied"),
        "{}",
        checked.stdout
    );
}
