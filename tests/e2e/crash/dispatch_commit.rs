//! A run whose dispatch is committed together with its event: one commit, then the POST.

use std::os::unix::process::ExitStatusExt;

use rstest::rstest;
use serde_json::{Value, json};

use super::stage;
use crate::support::client::{message, send};
use crate::support::runner::RecordedRequest;
use crate::support::{Engine, Postgres, Sqlite};

/// SIGABRT.
const ABORTED: Option<i32> = Some(6);

/// An event for the agent with policy `concurrent`.
fn event(id: &str) -> Value {
    let mut event = message(id);
    event["bot_id"] = json!("concurrent");
    event
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_conversation_dispatches_within_event_commit(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let mut stage = or_skip!(stage(engine, "1.0").await);
    stage.gateway.kill().await;
    // Only a separate commit of a dispatch reaches this failpoint.
    let separate = "post.before_intent=return(abort)";
    assert!(stage.gateway.start_with_failpoints(separate).await);
    for id in ["m-1", "m-2"] {
        let run_id = stage.client.post(&event(id)).await.run_id();
        let run = stage.client.finished(&run_id).await;
        assert_eq!(run["status"], json!("completed"), "{run}");
        assert_eq!(stage.runner.posts(&run_id), 1);
    }
    // The run gets the state left by the previous run.
    let is_of = |request: &RecordedRequest, id: &str| {
        request.is_run() && request.json()["context"]["event"]["event_id"] == *id
    };
    let run_request = stage
        .runner
        .wait_for_request("m-2", |one| is_of(one, "m-2"))
        .await;
    let context = &run_request.json()["context"];
    assert_eq!(context["state"]["conversation"]["progress"], "m-1:20");
    assert_eq!(context["context"]["event_seq"], json!(2));
    assert_eq!(context["context"]["transcript_seq"], json!(2));

    // Also with another live run in the conversation.
    stage.client.post(&event("held")).await.run_id();
    stage
        .runner
        .wait_for_request("held", |one| is_of(one, "held"))
        .await;
    let run_id = stage.client.post(&event("m-3")).await.run_id();
    let run = stage.client.finished(&run_id).await;
    assert_eq!(run["status"], json!("completed"), "{run}");
    assert_eq!(stage.runner.posts(&run_id), 1);

    // A run that waited for the end of another one is dispatched by a separate commit.
    let waiting = |id: &str| {
        let mut event = event(id);
        event["bot_id"] = json!("enqueue");
        event
    };
    stage.client.post(&waiting("m-4")).await.run_id();
    let _ = send(stage.client.posting(&waiting("m-5"))).await;
    assert_eq!(stage.gateway.exited().await.signal(), ABORTED);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crash_after_dispatch_commit_orphans_unposted_run(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let mut stage = or_skip!(stage(engine, "1.0").await);
    stage.gateway.kill().await;
    let second = "ingest.after_commit=1*off->return(abort)";
    assert!(stage.gateway.start_with_failpoints(second).await);
    let run_id = stage.client.post(&event("m-1")).await.run_id();
    stage.client.finished(&run_id).await;
    assert!(send(stage.client.posting(&event("m-2"))).await.is_err());
    assert_eq!(stage.gateway.exited().await.signal(), ABORTED);

    stage.gateway.restart().await;
    let replayed = stage.client.post(&event("m-2")).await;
    let run = stage.client.finished(&replayed.run_id()).await;
    assert_eq!(run["error"]["code"], json!("host.orphaned"), "{run}");
    assert_eq!(run["error"]["retryable"], json!(true), "{run}");
    assert_eq!(stage.runner.posts(&replayed.run_id()), 0);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_continues_after_unconfirmed_dispatch_commit(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let mut stage = or_skip!(stage(engine, "1.0").await);
    stage.gateway.kill().await;
    let second = "ingest.after_commit=1*off->1*return(error)";
    assert!(stage.gateway.start_with_failpoints(second).await);
    let run_id = stage.client.post(&event("m-1")).await.run_id();
    stage.client.finished(&run_id).await;
    let unheard = send(stage.client.posting(&event("m-2"))).await.unwrap();
    assert_eq!(unheard.status, 503, "{}", unheard.body);

    let replayed = stage.client.post(&event("m-2")).await;
    assert!(replayed.is_replay(), "{}", replayed.body);
    let run = stage.client.finished(&replayed.run_id()).await;
    assert_eq!(run["status"], json!("completed"), "{run}");
    assert_eq!(stage.runner.posts(&replayed.run_id()), 1);
}
