//! Retention: which rows are deleted by age, and which stay.

use rstest::rstest;
use serde_json::json;

use crate::interactions::{ask, asking_event, question};
use crate::support::client::message;
use crate::support::gateway::Config;
use crate::support::held::HeldRun;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::sse;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, until, within};

#[rstest]
#[tokio::test]
async fn deletes_expired_events_but_keeps_run(#[values(Sqlite, Postgres)] engine: Engine) {
    let impatient = |config: &mut Config| {
        // The sweep runs every third of a lease; a run expires immediately.
        "lease_seconds = 1.5".clone_into(&mut config.runs);
        "retention_days = 0.000001".clone_into(&mut config.ledger);
    };
    let stage = or_skip!(Stage::on(engine, impatient).await);
    let live = HeldRun::start(&stage, &message("m-live")).await;
    stage.runner.answer_all(|run| sse(run.talk(2).concat()));
    let run_id = stage.client.post(&message("m-1")).await.run_id();
    let events = format!("/v1/runs/{run_id}/events");
    let gone = within("the events to go", async {
        loop {
            let page = stage.client.get(&events).await;
            if page.status != 200 {
                return page;
            }
            tokio::task::yield_now().await;
        }
    });
    let gone = gone.await;
    gone.assert_error(410, "code", "cursor_expired");
    assert_eq!(
        gone.detail("snapshot_url"),
        &json!(format!("/v1/runs/{run_id}"))
    );
    assert_eq!(
        (gone.detail("last_sequence"), gone.detail("oldest_sequence")),
        (&json!(3), &json!(4))
    );

    let stream = stage.client.follow(&run_id, 1).await;
    assert_eq!(stream.response.status(), 410);
    let stream = stage.client.follow(&run_id, 3).await;
    assert_eq!(stream.response.status(), 204, "nothing was missed");
    let run = stage.client.run(&run_id).await;
    assert_members!(run, {"status": "completed", "last_sequence": 3});
    assert_eq!(run["output"]["content"], "1 2 ");
    let path = format!("/v1/runs/{run_id}/authorization");
    assert_eq!(stage.client.get(&path).await.status, 200);
    let history = stage.client.get("/v1/conversations/c-7/history").await.body;
    assert_eq!(history["items"][0]["content"], "1 2 ");

    // Runs cannot read it either; a live run loses nothing.
    let inside = live.get(&format!("/runs/{run_id}/events")).await;
    inside.assert_error(410, "code", "cursor_expired");
    assert_eq!(live.get("/context").await.status, 200);
    assert_eq!(live.get("/run/events").await.status, 200);
}

#[rstest]
#[tokio::test]
async fn keeps_events_while_interaction_is_open(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut asking = manifest(RUNNER_ID);
    asking["permissions"]["interactions"] = json!(["request"]);
    asking["capabilities"]["interactions"] = json!(true);
    let runner = StubRunner::start_as(asking).await;
    let impatient = |config: &mut Config| {
        "lease_seconds = 1.5".clone_into(&mut config.runs);
        "retention_days = 0.000001".clone_into(&mut config.ledger);
        config.agents[0].interactions = true;
    };
    let stage = or_skip!(OwnStage::of(engine, runner, impatient).await);
    let questions = [question("q", &json!({}))];
    let waiting_run_id = ask(&stage, &asking_event("m-1"), &questions).await;
    stage.runner.answer_all(|run| sse(run.talk(2).concat()));
    let younger = stage.client.post(&message("m-2")).await.run_id();
    let status_of = async |run_id: &str| {
        let events = format!("/v1/runs/{run_id}/events");
        stage.client.get(&events).await.status
    };
    until("the events to go", async || {
        status_of(&younger).await == 410
    })
    .await;
    assert_eq!(status_of(&waiting_run_id).await, 200);
    let open = format!("/v1/interactions?status=open&run_id={waiting_run_id}");
    let open = stage.client.get(&open).await.body;
    assert_eq!(open["items"].as_array().unwrap().len(), 1, "{open}");
}

/// More than the socket buffers hold, so that a stalled reader becomes too slow.
const LARGE_EVENTS: usize = 240;

#[tokio::test]
async fn reader_behind_deletion_gets_cursor_expired() {
    let impatient = |config: &mut Config| {
        "lease_seconds = 0.5".clone_into(&mut config.runs);
        "retention_days = 0.000001".clone_into(&mut config.ledger);
    };
    let stage = Stage::with(impatient).await;
    stage.runner.answer_all(|run| {
        let word = "x".repeat(100_000);
        let mut frames: Vec<_> = (1..=LARGE_EVENTS).map(|n| run.delta(n, &word)).collect();
        frames.push(run.completed(LARGE_EVENTS + 1));
        sse(frames.concat())
    });
    let mut slow = stage.client.post_streaming(&message("m-1")).await;
    let run_id = slow.run_id();
    let mut last = slow.event().await.unwrap().id.unwrap();
    let events = format!("/v1/runs/{run_id}/events");
    let gone = async || stage.client.get(&events).await.status == 410;
    until("the events to go", gone).await;
    while let Some(frame) = slow.event().await {
        last = frame.id.unwrap();
        assert!(!frame.event.starts_with("run."), "it was not overtaken");
    }
    assert!(last < 1 + LARGE_EVENTS as u64);
    let again = stage.client.follow(&run_id, last).await;
    assert_eq!(again.response.status(), 410);
}
