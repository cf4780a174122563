//! Cursors, pages, and the event stream of a run that is read again.

use reqwest::Method;
use rstest::rstest;
use serde_json::Value;

use crate::support::client::{self, Client, message};
use crate::support::script::{Gate, Run, ScriptStep, sse, sse_and_wait, sse_head};
use crate::support::stream::Stream;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage};

/// Three deltas and the terminal event.
fn four_events(run: &Run) -> Vec<ScriptStep> {
    sse(run.talk(3).concat())
}

async fn status_of(client: &Client, run_id: &str, after: &str, last: Option<&str>) -> u16 {
    let path = format!("/v1/runs/{run_id}/events{after}");
    let mut request = client.request(Method::GET, &path);
    if let Some(last) = last {
        request = request.header("last-event-id", last);
    }
    client::stream(request)
        .await
        .unwrap()
        .response
        .status()
        .as_u16()
}

#[rstest]
#[tokio::test]
async fn accepts_only_reached_numeric_cursors(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run_id = stage.start(four_events).await;
    stage.outcome(&run_id).await;

    for (after, last, status) in [
        ("", None, 200),
        ("?after=0", None, 200),
        ("?after=3", None, 200),
        ("", Some("3"), 200),
        // After the terminal event, 204 stops a browser's reconnects.
        ("?after=4", None, 204),
        ("", Some("4"), 204),
        // The header takes precedence over the query.
        ("?after=1", Some("4"), 204),
        ("?after=4", Some("1"), 200),
        ("?after=5", None, 400),
        ("", Some("5"), 400),
        ("?after=x", None, 400),
        ("?after=-1", None, 400),
        ("?after=1.5", None, 400),
        ("?after=18446744073709551616", None, 400),
        ("", Some("one"), 400),
        // An empty value counts as absent.
        ("?after=", None, 200),
        ("?after", None, 200),
        ("", Some(""), 200),
        ("?after=4", Some(""), 204),
        ("?after=", Some("4"), 204),
    ] {
        let received = status_of(&stage.client, &run_id, after, last).await;
        assert_eq!(received, status, "{after} {last:?}");
    }
}

#[tokio::test]
async fn cursor_error_reports_last_sequence() {
    let stage = Stage::new().await;
    let run_id = stage.start(four_events).await;
    stage.outcome(&run_id).await;

    let answer = stage
        .client
        .get(&format!("/v1/runs/{run_id}/events?after=9"))
        .await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.error("code"), "invalid_argument");
    assert_eq!(answer.detail("last_sequence"), 4);
}

#[tokio::test]
async fn stream_starts_with_run_id() {
    let stage = Stage::new().await;
    let run_id = stage.start(four_events).await;
    let mut stream = stage.client.follow(&run_id, 0).await;
    assert_eq!(stream.header("content-type"), "text/event-stream");
    assert_eq!(
        stream.frame().await.unwrap().raw,
        format!(": run {run_id}\n\n")
    );
}

#[rstest]
#[tokio::test]
async fn page_limit_bounds_events(#[values(Sqlite, Postgres)] engine: Engine) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run_id = stage.start(four_events).await;
    stage.outcome(&run_id).await;

    for (query, sequences, has_more) in [
        ("", vec![1_u64, 2, 3, 4], false),
        ("?limit=2", vec![1, 2], true),
        ("?limit=2&after=1", vec![2, 3], true),
        ("?limit=2&after=2", vec![3, 4], false),
        ("?limit=1&after=3", vec![4], false),
    ] {
        let page = stage
            .client
            .get(&format!("/v1/runs/{run_id}/events{query}"))
            .await;
        assert_eq!(page.status, 200, "{query}");
        let items = page.body["items"].as_array().unwrap();
        let items_read: Vec<_> = items
            .iter()
            .filter_map(|event| event["sequence"].as_u64())
            .collect();
        assert_eq!(
            (items_read, &page.body["has_more"]),
            (sequences, &Value::Bool(has_more))
        );
    }
}

#[rstest]
#[tokio::test]
async fn replays_ended_run_after_restart(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    stage.runner.answer_all(four_events);
    let stream = stage.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    let before = stream.rest().await;

    stage.gateway.stop().await;
    stage.gateway.restart().await;
    let after = stage.client.follow(&run_id, 0).await.rest().await;
    assert_eq!(before, after);
    assert_eq!(stage.outcome(&run_id).await.ending(), "completed");
}

#[tokio::test]
async fn sends_keep_alive_comments_on_idle_streams() {
    let stage = Stage::with(|config| config.server = "heartbeat_seconds = 0.2".into()).await;
    let gate = Gate::new();
    let held = gate.clone();
    let run_id = stage
        .start(move |_| vec![sse_head(), ScriptStep::Hold(held.clone())])
        .await;

    let mut stream = stage.client.follow(&run_id, 0).await;
    stream
        .frame()
        .await
        .expect("the comment that opens the stream");
    for _ in 0..2 {
        let heartbeat = stream.frame().await.unwrap();
        assert!(heartbeat.raw.starts_with(':'), "{heartbeat:?}");
        assert_eq!(heartbeat.id, None);
    }
    gate.cancel();
}

#[tokio::test]
async fn concurrent_readers_get_identical_frames() {
    let stage = Stage::new().await;
    let gate = Gate::new();
    let held = gate.clone();
    let run_id = stage
        .start(move |run| {
            let mut steps = vec![ScriptStep::Hold(held.clone())];
            steps.extend(sse_and_wait(run.talk(50).concat()));
            steps
        })
        .await;

    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(stage.client.follow(&run_id, 0).await);
    }
    gate.cancel();
    let seen = futures_util::future::join_all(readers.into_iter().map(Stream::rest));
    let seen = seen.await;
    assert_eq!(seen[0].len(), 51);
    assert!(seen.iter().all(|frames| *frames == seen[0]));
}

#[tokio::test]
async fn unknown_run_is_not_found() {
    let stage = Stage::new().await;
    for path in ["", "/events", "/rejections"] {
        let run_id = uuid::Uuid::now_v7();
        let answer = stage.client.get(&format!("/v1/runs/{run_id}{path}")).await;
        assert_eq!(answer.status, 404, "{path}");
        assert_eq!(answer.error("code"), "not_found", "{path}");
    }
}
