//! A live gateway that has lost its leases: the new owner's writes count, its own do not.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::stage;
use crate::support::client::message;
use crate::support::script::{Run, ScriptStep, chunk, sse_head};
use crate::support::{Postgres, until};

/// An endless stream of deltas.
fn endless(run: &Run) -> Vec<ScriptStep> {
    let delta = run.unnumbered("message.delta", &chunk("word "));
    vec![
        sse_head(),
        ScriptStep::Repeat(delta.into_bytes(), Duration::from_millis(20)),
    ]
}

/// The old owner renews no lease, and is delayed at one step of the run.
#[rstest]
#[case::while_relaying("")]
#[case::before_post("post.after_intent=return(delay)")]
#[case::after_response("post.after_send=return(delay)")]
#[case::before_visible_commit("relay.after_commit=5*off->return(delay)")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn taken_over_run_has_one_terminal_event(#[case] late: &str) {
    let mut stage = or_skip!(stage(Postgres, "1.0").await);
    stage.gateway.kill().await;
    let broken = format!("lease.before_renew=return(error);{late}");
    assert!(stage.gateway.start_with_failpoints(&broken).await);
    let replica = stage.gateway.start_replica().await;
    stage.runner.answer("m-1", endless);
    let run_id = stage.client.post(&message("m-1")).await.run_id();

    let there = replica.client.follow(&run_id, 0).await.rest().await;
    let ledger = replica.client.ledger(&run_id).await;
    let streamed: Vec<_> = there.into_iter().map(|frame| frame.data).collect();
    assert_eq!(streamed, ledger.0);
    let run = replica.client.run(&run_id).await;
    assert_eq!(run["error"]["code"], json!("host.orphaned"), "{run}");
    assert_eq!(run["error"]["retryable"], json!(true), "{run}");

    // The old owner notices and logs the takeover, and its clients see the same end.
    until("the old owner to notice", async || {
        let log = stage.gateway.log();
        log.contains("another replica took over run")
            || log.contains("cannot be written")
            || log.contains("another replica executes run")
    })
    .await;
    let here = stage.client.follow(&run_id, 0).await.rest().await;
    let here: Vec<_> = here.into_iter().map(|frame| frame.data).collect();
    let ledger = stage.client.ledger(&run_id).await;
    assert_eq!(here, streamed, "nothing after the terminal");
    assert_eq!(ledger.0, streamed, "nothing after the terminal");
    ledger.assert_valid(&run_id);
    assert!(ledger.is_ended());
    let max_posts = usize::from(!late.starts_with("post.after_intent"));
    assert!(
        stage.runner.posts(&run_id) <= max_posts,
        "nothing is posted past the lease"
    );
}
