//! Visibility of stored facts: after a restart, across conversations, and after the end of a run.

use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};

use crate::support::client::{message, send};
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{RunScript, send as step, sse, sse_and_wait, sse_head};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

/// A gateway that grants its runs every read and write of facts.
async fn stage(engine: Engine) -> Option<OwnStage> {
    let mut reader = manifest(RUNNER_ID);
    reader["permissions"] =
        json!({"history": ["page"], "events": ["get", "page"], "storage": ["plugin"]});
    let runner = StubRunner::start_as(reader).await;
    runner.answer_all(|run| sse(run.talk(1).concat()));
    OwnStage::of(engine, runner, |config| {
        config.agents[0].resources =
            r#"history = ["page"], events = ["get", "page"], storage = ["plugin"]"#;
    })
    .await
}

fn members(page: &Value, name: &str) -> Vec<Value> {
    let items = page["items"].as_array().unwrap_or_else(|| panic!("{page}"));
    items.iter().map(|item| item[name].clone()).collect()
}

#[rstest]
#[tokio::test]
async fn facts_of_runs_survive_restart(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(stage(engine).await);
    let mut event = message("m-1");
    event["raw"] = json!({"marker": "the-platform-said-so"});
    let run = HeldRun::start(&stage, &event).await;
    let written = run.put("/state/conversation/count", &json!(7)).await;
    assert_eq!(written.status, 200, "{}", written.body);
    let blob = run.request(Method::PUT, "/storage/plugin/notes");
    let blob = blob.header("content-type", "text/plain").body("\"notes\"");
    assert_eq!(send(blob).await.unwrap().status, 204);
    let before = run.end(&stage).await;

    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let run = HeldRun::start(&stage, &message("m-2")).await;
    let count = json!({"value": 7, "version": 1});
    assert_eq!(run.get("/state/conversation/count").await.body, count);
    assert_eq!(run.get("/storage/plugin/notes").await.body, "notes");
    let history = run.get("/history?direction=forward").await.body;
    assert_eq!(members(&history, "event_id"), ["m-1", "m-1", "m-2"]);
    assert_eq!(members(&history, "role"), ["user", "assistant", "user"]);
    let events = run.get("/events").await.body;
    assert_eq!(members(&events, "event_id"), ["m-2", "m-1"]);
    // No runner receives the raw payload of the platform.
    for document in [history, events, run.run_request.clone()] {
        assert_lacks!(document.to_string(), "the-platform-said-so");
    }
    run.end(&stage).await;
    let run_id = before.run["run_id"].as_str().unwrap();
    assert_eq!(stage.client.run(run_id).await, before.run);
    assert_eq!(stage.client.ledger(run_id).await, before.ledger);
}

#[tokio::test]
async fn hidden_objects_look_like_absent_ones() {
    let stage = stage(Sqlite).await.unwrap();
    let mut far = message("far");
    far["conversation"]["conversation_id"] = json!("c-8");
    let hidden = stage.client.post(&far).await.run_id();
    stage.client.finished(&hidden).await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let absent = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61";
    for (path, there, not_there) in [
        ("/runs/ID", hidden.as_str(), absent),
        ("/runs/ID/events", hidden.as_str(), absent),
        ("/events/ID", "far", "absent"),
    ] {
        let of = async |id: &str| run.get(&path.replace("ID", id)).await;
        let (hidden, nothing) = (of(there).await, of(not_there).await);
        assert_eq!((hidden.status, nothing.status), (404, 404));
        assert_eq!(hidden.error("code"), "not_found");
        assert_eq!(hidden.body_without(there), nothing.body_without(not_there));
    }
    run.end(&stage).await;
}

const ENDINGS: [(&str, RunScript); 6] = [
    ("completed", |run| sse(run.talk(1).concat())),
    ("failed boom", |run| sse(run.failed(1))),
    ("failed runner.stream_truncated", |_| sse("")),
    ("failed runner.protocol_violation", |run| {
        sse(run.delta(0, "a"))
    }),
    ("timeout deadline_exceeded", |run| {
        sse_and_wait(run.delta(1, "a"))
    }),
    // A runner may not use the code of a cancel without a cancel request.
    ("failed runner.error", |run| {
        vec![
            sse_head(),
            step(run.result(
                1,
                "run.failed",
                r#"{"code":"cancelled","message":"enough"}"#,
            )),
        ]
    }),
];

#[tokio::test]
async fn run_token_is_invalid_after_any_ending() {
    let soon = |config: &mut Config| config.agents[0].timeout_seconds = 3.0;
    let stage = Stage::with(soon).await;
    for (ending, script) in ENDINGS {
        let run_id = stage.start(script).await;
        assert_eq!(stage.outcome(&run_id).await.ending(), ending);
        let host = stage.host_of(&run_id).await;
        for path in ["/run", "/context", "/history", "/state/conversation"] {
            let refused = host.get(path).await;
            assert_eq!(refused.status, 401, "{ending} {path}: {}", refused.body);
            assert_eq!(refused.error("code"), "unauthenticated", "{ending}");
        }
    }
}
