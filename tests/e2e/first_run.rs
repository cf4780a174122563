//! The path of one event, byte for byte.

use rstest::rstest;
use serde_json::{Value, json};
use sqlx::Connection as _;

use crate::support::client::message;
use crate::support::database::rows;
use crate::support::gateway::STUB_API_KEY;
use crate::support::held::HeldRun;
use crate::support::runner::RUNNER_ID;
use crate::support::script::{Gate, Run, ScriptStep, chunk, sse, sse_around};
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

const DELTA: &str = r#"{"chunk":{"role":"assistant","content":"hello "}}"#;
const STATE: &str = r#"{"scope":"conversation","key":"echo.count","value":1}"#;
const MESSAGE: &str =
    r#"{"message":{"role":"assistant","content":"hello big world"},"file_ids":[]}"#;
const STOP: &str = r#"{"finish_reason":"stop"}"#;
const EVENTS: [(&str, &str); 4] = [
    ("message.delta", DELTA),
    ("state.updated", STATE),
    ("message.completed", MESSAGE),
    ("run.completed", STOP),
];

fn short_run(run: &Run) -> Vec<ScriptStep> {
    sse([
        ": hi\n\nevent: message.delta\nid: 1\n".to_owned(),
        run.result(1, "message.delta", DELTA),
        run.result(2, "state.updated", STATE),
        run.result(3, "message.completed", MESSAGE),
        run.result("4,\"usage\":null", "run.completed", STOP),
    ]
    .concat())
}

#[rstest]
#[tokio::test]
async fn posted_event_returns_stream_of_its_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.answer_all(short_run);

    let mut stream = stage.client.post_streaming(&message("m-1001")).await;
    let run_id = stream.run_id();
    for (header, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache, no-transform"),
        ("x-accel-buffering", "no"),
        ("location", format!("/v1/runs/{run_id}").as_str()),
    ] {
        assert_eq!(stream.header(header), value, "{header}");
    }
    let first = stream.frame().await.unwrap();
    assert_eq!(first.raw, format!(": run {run_id}\n\n"));

    let frames = stream.rest().await;
    assert_eq!(frames.len(), EVENTS.len());
    for ((frame, (kind, data)), sequence) in frames.iter().zip(EVENTS).zip(1..) {
        let created_at = json_of(&frame.data)["created_at"].as_u64().unwrap();
        let bytes = format!(
            "id: {sequence}\nevent: {kind}\ndata: {{\"run_id\":\"{run_id}\",\
             \"sequence\":{sequence},\"type\":\"{kind}\",\"data\":{data},\
             \"created_at\":{created_at},\"source\":\"runner\"}}\n\n"
        );
        assert_eq!(frame.raw, bytes);
    }

    let outcome = stage.outcome(&run_id).await;
    outcome.assert("completed", &EVENTS.map(|(kind, _)| kind));
    assert_eq!(outcome.run["output"]["content"], "hello big world");
    assert_eq!(outcome.run["error"], Value::Null);
    assert_eq!(outcome.run["usage"], Value::Null);
    assert_eq!(outcome.run["runner_id"], RUNNER_ID);
    assert_eq!(outcome.run["conversation_id"], "c-7");
    assert_members!(outcome.run, {"metadata": json!({"rejected": 0, "duplicates": 0, "gaps": 0})});
}

#[rstest]
#[tokio::test]
async fn response_without_stream_names_stream_url(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    stage.runner.answer_all(short_run);

    let answer = stage.client.post(&message("m-1001")).await;
    let run_id = answer.run_id();
    let expected = json!({
        "event_id": "m-1001",
        "run_id": run_id,
        "run_url": format!("/v1/runs/{run_id}"),
        "status": "created",
    });
    assert_eq!(answer.body, expected);
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
}

#[tokio::test]
async fn sends_one_signed_request_to_the_runner() {
    let stage = Stage::new().await;
    stage.runner.answer_all(short_run);
    let run_id = stage.client.post(&message("m-1001")).await.run_id();
    stage.outcome(&run_id).await;

    let request = stage.runner.run_request(&run_id).await;
    let hex = run_id.replace('-', "");
    for (header, value) in [
        ("accept", "text/event-stream"),
        ("accept-encoding", "identity"),
        ("content-type", "application/json"),
        ("runnel-run-id", run_id.as_str()),
        ("runnel-attempt", "1"),
        ("webhook-id", format!("run_{hex}_1").as_str()),
    ] {
        assert_eq!(request.header(header), Some(value), "{header}");
    }
    let trace: Vec<_> = request.header("traceparent").unwrap().split('-').collect();
    assert_eq!(
        (trace[0], trace[1], trace[2].len(), trace[3]),
        ("00", hex.as_str(), 16, "01")
    );
    assert!(request.is_signed(), "{request:?}");
    assert_eq!(stage.runner.posts(&run_id), 1);

    let listing = stage
        .runner
        .wait_for_request("the runners", |request| request.method == "GET")
        .await;
    assert_eq!(listing.path, "/runners");
    assert!(listing.is_signed(), "{listing:?}");
}

#[tokio::test]
async fn sends_endpoint_headers_with_every_request() {
    let headers = format!("headers = {{ x-api-key = \"env:{}\" }}", STUB_API_KEY.0);
    let stage = Stage::with(|config| config.endpoint = headers).await;
    let outcome = stage.play(short_run).await;
    assert_eq!(outcome.ending(), "completed");
    for request in stage.runner.requests() {
        assert_eq!(
            request.header("x-api-key"),
            Some(STUB_API_KEY.1),
            "{request:?}"
        );
    }
}

#[tokio::test]
async fn runner_gets_context_and_unstored_token() {
    let stage = Stage::new().await;
    stage.runner.answer_all(short_run);
    let run_id = stage.client.post(&message("m-1001")).await.run_id();

    let request = stage.runner.run_request(&run_id).await;
    let text = String::from_utf8(request.body.clone()).unwrap();
    let start = format!(r#"{{"runner_id":"{RUNNER_ID}","runner_name":"default","context":{{"#);
    assert!(text.starts_with(&start), "{text}");

    let body = request.json();
    let host = &body["host"];
    assert_eq!(host["base_url"], format!("{}/host/v1", stage.client.url));
    assert!(host["token_expires_at"].is_u64(), "{host}");
    let token = host["token"].as_str().unwrap();
    assert_eq!(text.matches(token).count(), 1, "{text}");

    let context = &body["context"];
    assert!(context["runtime"]["deadline_at"].is_f64(), "{context}");
    for (pointer, value) in [
        ("/run_id", run_id.as_str()),
        ("/event/event_id", "m-1001"),
        ("/event/event_type", "message.received"),
        ("/trigger/type", "message.received"),
        ("/conversation/conversation_id", "c-7"),
        ("/actor/actor_id", "u-1"),
        ("/input/text", "hello big world"),
        ("/input/contents/0/text", "hello big world"),
        ("/delivery/surface", "api"),
        ("/context/inline_policy/mode", "current_event"),
    ] {
        assert_eq!(context.pointer(pointer), Some(&json!(value)), "{pointer}");
    }
}

#[tokio::test]
async fn result_bytes_reach_the_client_unchanged() {
    const DATA: &str =
        r#"{ "zeta":1.50, "chunk" : {"content":"\u00e9\/é","role":"assistant"},"alpha":1E2 }"#;
    let stage = Stage::new().await;
    let outcome = stage
        .play(|run| sse(run.result(1, "message.delta", DATA) + &run.completed(2)))
        .await;
    outcome.assert("completed", &["message.delta", "run.completed"]);
    let event = &outcome.ledger.0[0];
    assert!(event.contains(&format!("\"data\":{DATA},")), "{event}");
}

#[tokio::test]
async fn client_disconnect_does_not_cancel_the_run() {
    let stage = Stage::new().await;
    let gate = Gate::new();
    let held = gate.clone();
    stage.runner.answer_all(move |run| {
        sse_around(
            &held,
            run.delta(1, "a"),
            run.delta(2, "b") + &run.completed(3),
        )
    });

    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    assert_eq!(stream.event().await.unwrap().id, Some(1));
    let run_id = stream.run_id();
    drop(stream);
    gate.cancel();

    let outcome = stage.outcome(&run_id).await;
    outcome.assert(
        "completed",
        &["message.delta", "message.delta", "run.completed"],
    );
    assert_eq!(outcome.ledger.text(), "ab");
}

#[tokio::test]
async fn builds_transcript_message_from_deltas() {
    let stage = Stage::new().await;
    let outcome = stage
        .play(|run| {
            let complete_event = run.unnumbered("message.delta", &chunk("big "));
            sse(run.delta(1, "hello ")
                + &complete_event
                + &run.delta(2, "world")
                + &run.completed(3))
        })
        .await;
    assert_eq!(outcome.ending(), "completed");
    assert_eq!(outcome.run["output"]["content"], "hello big world");
}

fn json_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn sqlite_database_allows_one_gateway() {
    let mut stage = OwnStage::new().await;
    let run = HeldRun::start(&stage, &message("m-1")).await;
    let second = stage.gateway.command(&["serve"]).await.exited(1);
    assert_contains!(second.stderr, "is open in another gateway");
    assert_eq!(run.end(&stage).await.ending(), "completed");
    stage.gateway.kill().await;
    stage.gateway.restart().await;
}

#[tokio::test]
async fn logs_undeclared_policy_resources_at_start() {
    let stage = OwnStage::with(|config| {
        config.agents[0].resources =
            r#"models = ["gpt-largo"], knowledge_bases = "*", files = ["rules"]"#;
    })
    .await;
    let log = stage.gateway.log();
    for expected in ["the model gpt-largo, which", "the file rules, which"] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
}

/// After a graceful stop, a copy of the one database file is complete.
#[tokio::test]
async fn graceful_stop_checkpoints_the_wal() {
    let mut stage = OwnStage::new().await;
    stage.runner.answer_all(short_run);
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    stage.client.finished(&run_id).await;
    let url = stage.gateway.database_url();
    // With another open connection, closing the gateway's own does not checkpoint the WAL.
    let mut other = sqlx::SqliteConnection::connect(&url).await.unwrap();
    let counting = sqlx::query("SELECT COUNT(*) FROM runs");
    counting.fetch_one(&mut other).await.unwrap();
    stage.gateway.stop().await;
    let file = url.strip_prefix("sqlite://").unwrap();
    let log = std::fs::metadata(format!("{file}-wal"));
    assert_eq!(log.map_or(0, |log| log.len()), 0);
    let copied = format!("{file}.copy");
    std::fs::copy(file, &copied).unwrap();
    let runs = rows(&format!("sqlite://{copied}"), "SELECT status FROM runs").await;
    assert_eq!(runs, ["completed"]);
    other.close().await.unwrap();
}
