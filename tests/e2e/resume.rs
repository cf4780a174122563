//! A client whose connection breaks at any point resumes there and ends with the complete ledger.

use std::time::Duration;

use rstest::rstest;

use crate::support::client::{Client, message, stream};
use crate::support::gateway::Config;
use crate::support::ledger::Ledger;
use crate::support::proxy::{CloseKind, CutTrigger, Proxy, SenderSide};
use crate::support::script::{Gate, Run, ScriptStep, send, sse_head};
use crate::support::stream::Frame;
use crate::support::{Engine, OwnStage, Postgres, Sqlite, Stage, number, seed};

const EVENTS: usize = 200;

/// 199 deltas and the terminal event, slow enough to interrupt.
fn long_run(run: &Run) -> Vec<ScriptStep> {
    let frames = run
        .talk(EVENTS - 1)
        .into_iter()
        .map(String::into_bytes)
        .collect();
    vec![
        sse_head(),
        ScriptStep::Pace(frames, Duration::from_millis(2)),
    ]
}

fn sequence(frames: &[Frame]) -> u64 {
    frames.last().and_then(|frame| frame.id).unwrap_or_default()
}

#[track_caller]
fn assert_is_ledger(seen: &[Frame], ledger: &Ledger) {
    let seen: Vec<_> = seen.iter().map(|frame| frame.data.clone()).collect();
    assert_eq!(seen, ledger.0);
}

/// Reads `size` events per connection, to the end.
async fn read_in_pieces(client: &Client, run_id: &str, size: usize) -> Vec<Frame> {
    let mut seen: Vec<Frame> = Vec::new();
    while !seen
        .last()
        .is_some_and(|frame| frame.event.starts_with("run."))
    {
        let mut stream = client.follow(run_id, sequence(&seen)).await;
        let piece = stream.events(size).await;
        assert!(!piece.is_empty(), "the stream ended after {}", seen.len());
        seen.extend(piece);
    }
    seen
}

#[rstest]
#[tokio::test]
async fn resumed_live_streams_have_no_gaps_or_duplicates(
    #[values(Sqlite, Postgres)] engine: Engine,
) {
    let stage = or_skip!(Stage::on(engine, |_| {}).await);
    let run_id = stage.start(long_run).await;
    let sizes = [1, 2, 3, 7, 50];
    let clients = sizes.map(|size| read_in_pieces(&stage.client, &run_id, size));
    let seen = futures_util::future::join_all(clients).await;

    let ledger = stage.outcome(&run_id).await.ledger;
    assert_eq!(ledger.0.len(), EVENTS);
    for seen in seen {
        assert_is_ledger(&seen, &ledger);
    }
}

#[rstest]
#[tokio::test]
async fn resumes_after_any_event_and_restart(#[values(Sqlite, Postgres)] engine: Engine) {
    let mut stage = or_skip!(OwnStage::on(engine, |_| {}).await);
    stage.runner.answer_all(long_run);
    let stream = stage.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    let live = stream.rest().await;

    cut_after_every_event(&stage.client, &run_id, &live).await;
    stage.gateway.stop().await;
    stage.gateway.restart().await;
    cut_after_every_event(&stage.client, &run_id, &live).await;
    assert_is_ledger(&live, &stage.outcome(&run_id).await.ledger);
}

async fn cut_after_every_event(client: &Client, run_id: &str, ledger: &[Frame]) {
    for after in 0..ledger.len() {
        let mut seen = client.follow(run_id, 0).await.events(after).await;
        seen.extend(client.follow(run_id, sequence(&seen)).await.rest().await);
        assert_eq!(seen, ledger, "cut after {after}");
    }
}

#[rstest]
#[tokio::test]
async fn streamed_events_survive_gateway_kill(#[values(Sqlite, Postgres)] engine: Engine) {
    let lease = |config: &mut Config| config.runs = "lease_seconds = 2".into();
    let mut stage = or_skip!(OwnStage::on(engine, lease).await);
    let never = Gate::new();
    stage.runner.answer_all(move |run| {
        let frames = run.talk(EVENTS)[..EVENTS / 2].concat();
        vec![sse_head(), send(frames), ScriptStep::Hold(never.clone())]
    });

    let mut stream = stage.client.post_streaming(&message("m-1")).await;
    let run_id = stream.run_id();
    let mut seen = stream.events(EVENTS / 2).await;
    stage.gateway.kill().await;
    assert_eq!(stream.event().await, None);
    stage.gateway.restart().await;

    let rest = stage
        .client
        .follow(&run_id, sequence(&seen))
        .await
        .rest()
        .await;
    seen.extend(rest);
    let outcome = stage.outcome(&run_id).await;
    assert_eq!(outcome.ending(), "failed host.orphaned");
    assert_eq!(outcome.run["error"]["retryable"], true);
    assert_eq!(outcome.ledger.0.len(), EVENTS / 2 + 1);
    assert_is_ledger(&seen, &outcome.ledger);
    assert_eq!(stage.runner.posts(&run_id), 1);
}

/// Cuts at offsets of the complete response, including its head: every thirteenth byte or
/// `RUNNEL_TEST_WIRE_CUT_STEP`. The first offset varies.
#[tokio::test]
async fn resumes_after_disconnect_at_any_byte() {
    let stage = Stage::new().await;
    let run_id = stage
        .start(|run| {
            let words = (1..8).map(|n| run.delta(n, "h\u{e9} \u{4e16}\u{754c} \u{1F389}"));
            let all: String = words.chain([run.completed(8)]).collect();
            vec![sse_head(), send(all)]
        })
        .await;
    let ledger = stage.outcome(&run_id).await.ledger;
    let target = stage.client.url.trim_start_matches("http://");
    let proxy = Proxy::to(target).await;
    let through = Client::new(&proxy.url(), &stage.client.key);
    let all = through.follow(&run_id, 0).await.rest().await;
    assert_is_ledger(&all, &ledger);
    let (length, step) = (proxy.answered(), number("RUNNEL_TEST_WIRE_CUT_STEP", 13));
    let first = usize::try_from(seed() % step as u64).unwrap();
    let cuts = (1 + first..length).step_by(step);
    for (n, after) in cuts.enumerate() {
        let how = [CloseKind::Finished, CloseKind::Reset][n % 2];
        proxy.arm(CutTrigger::After(SenderSide::Callee, after, how));
        let mut seen = match stream(through.following(&run_id).header("last-event-id", 0)).await {
            Ok(cut) => cut.rest().await,
            Err(_) => Vec::new(),
        };
        proxy.fired(n + 1).await;
        assert!(seen.len() <= ledger.0.len());
        if seen.len() < ledger.0.len() {
            let rest = through.follow(&run_id, sequence(&seen)).await;
            seen.extend(rest.rest().await);
        }
        assert_is_ledger(&seen, &ledger);
    }
}
