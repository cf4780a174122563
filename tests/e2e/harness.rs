//! The harness runner with a fake ACP agent that can inject faults.

#[path = "harness/faults.rs"]
mod faults;
#[path = "harness/kills.rs"]
mod kills;
#[path = "harness/model_faults.rs"]
mod model_faults;
#[path = "harness/permissions.rs"]
mod permissions;
#[path = "harness/users.rs"]
mod users;

use serde_json::{Value, json};

use crate::support::harness::{HarnessFixture, fake};
use crate::support::runner::SECRET;

#[tokio::test]
async fn streams_a_turn_and_keeps_its_session() {
    let house = HarnessFixture::open(fake("good")).await;
    let first = house.ask("hello").await;
    assert_eq!(first.ending(), "completed", "{}", first.run);
    assert!(first.text().contains("hello"), "{}", first.text());
    assert!(!first.of("message.delta").is_empty());
    let calls = [
        first.of("tool.call.started"),
        first.of("tool.call.completed"),
    ];
    assert_eq!(calls.map(|calls| calls.len()), [1, 1]);
    let state: Vec<_> = first
        .of("state.updated")
        .iter()
        .map(|data| data["key"].clone())
        .collect();
    assert!(state.contains(&json!("external.session_id")), "{state:?}");
    assert!(
        state.contains(&json!("external.working_directory")),
        "{state:?}"
    );
    house.wait_for_no_process().await;

    // The session continues: no second introduction, no change of state.
    let second = house.ask("again").await;
    assert_eq!(second.ending(), "completed");
    assert_lacks!(second.text(), "You work for a user");
    assert!(second.of("state.updated").is_empty());
    assert!(first.text().contains("You work for a user"));
}

#[tokio::test]
async fn loads_session_without_resume_support() {
    let house = HarnessFixture::open(fake("good --no-resume")).await;
    house.ask("hello").await;
    let second = house.ask("again").await;
    assert_eq!(second.ending(), "completed");
    assert!(
        !second.text().contains("hello"),
        "the history is sent again: {}",
        second.text()
    );
}

#[tokio::test]
async fn replaces_lost_session_and_logs_it() {
    let house = HarnessFixture::open(fake("good --lost")).await;
    house.ask("my number is 7411").await;
    let second = house.ask("again").await;
    assert_eq!(second.ending(), "completed");
    let text = second.text();
    // The answer becomes history, where notes of the service have no place.
    assert_contains!(second.logs(), "could not be resumed");
    assert!(!text.contains("could not be resumed"), "{text}");
    assert!(
        text.contains("7411"),
        "the new session knows nothing of the conversation: {text}"
    );
}

#[tokio::test]
async fn rejects_unavailable_settings_when_saved() {
    let house = HarnessFixture::open(fake("good")).await;
    let agents = house.admin.get("/v1/agents").await.body;
    let runner = agents["items"][0]["runner_id"].clone();
    for (config, pointer) in [
        (json!({"model": "scripted", "mode": "yolo"}), "/config/mode"),
        (
            json!({"model": "scripted", "workspace": "/etc"}),
            "/config/workspace",
        ),
        (
            json!({"model": "scripted", "command": "sh"}),
            "/config/command",
        ),
        (json!({"model": "scripted", "args": ["-c"]}), "/config/args"),
        (
            json!({"model": "scripted", "env-SECRET": true}),
            "/config/env-SECRET",
        ),
    ] {
        let agent = json!({
            "name": "other", "event_types": ["message.received"], "scope": {"kind": "global"},
            "runner_id": runner, "config": config,
        });
        let refused = house.admin.create("/v1/agents", &agent).await;
        assert_eq!(refused.status, 400, "{config}: {}", refused.body);
        assert_contains!(refused.body.to_string(), pointer);
    }
}

#[tokio::test]
async fn workspace_passes_files_in_both_directions() {
    let house = HarnessFixture::open(fake("good")).await;
    house.ask("hello").await;
    // The harness writes a file for the user during the next turn.
    let outbox = house.workspace().join("outbox/report.txt");
    let mut event = crate::support::harness::user_message("permit made.txt", true);
    event["input"]["contents"] = json!([
        {"type": "file_base64", "file_base64": "aGVsbG8=", "file_name": "../note.txt"},
    ]);
    let run = house.client.post(&event).await.run_id();
    let question = house.question(&run).await;
    let inbox = house.workspace().join("inbox/note.txt");
    assert_eq!(std::fs::read_to_string(inbox).unwrap(), "hello");
    std::fs::write(&outbox, "done").unwrap();
    house.answer(&question, "allow_once").await;
    let ended = house.ended(&run).await;
    let message = ended.of("message.completed")[0].clone();
    let id = message["file_ids"][0].as_str().expect("a file").to_owned();
    let file = house.client.get(&format!("/v1/artifacts/{id}")).await.body;
    assert_eq!(file["name"], "report.txt");
}

#[tokio::test]
async fn reports_missing_command_in_manifest_and_run() {
    let mut setup = fake("good");
    setup.harness = "preset = \"acp\"\ncommand = \"/nowhere/agent\"".to_owned();
    let house = HarnessFixture::open(setup).await;
    let runners = house.admin.get("/v1/runners").await.body;
    let reason = find(&runners, "unavailable_reason").expect("a reason");
    let ended = house.ask("hello").await;
    assert_eq!(ended.ending(), "failed harness.command_not_found");
    for text in [reason, &ended.run["error"]["message"]] {
        let text = text.as_str().unwrap();
        assert_contains!(text, "/nowhere/agent", "install it");
    }
}

/// The first value with this member name at any depth.
fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(members) => members
            .get(name)
            .or_else(|| members.values().find_map(|value| find(value, name))),
        Value::Array(items) => items.iter().find_map(|item| find(item, name)),
        _ => None,
    }
}

#[tokio::test]
async fn results_hold_neither_run_token_nor_endpoint_secret() {
    let house = HarnessFixture::open(fake("exit-3")).await;
    let ended = house.ask("hello").await;
    let document = format!("{}{:?}", ended.run, ended.results);
    assert_lacks!(document, "rk_", SECRET, "eyJ");
}
