//! A rolling restart of replicas while clients post and read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::StatusCode;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::client::{Client, message, send, stream};
use crate::support::gateway::Config;
use crate::support::script::{Run, ScriptStep, sse_head};
use crate::support::{OwnStage, Postgres, number, within};

const WORKERS: usize = 6;
const EVENTS: usize = 31;

/// A run of about 150 ms, so that a shutdown meets runs of every age.
fn steady(run: &Run) -> Vec<ScriptStep> {
    let frames = run.talk(EVENTS - 1).into_iter().map(String::into_bytes);
    vec![
        sse_head(),
        ScriptStep::Pace(frames.collect(), Duration::from_millis(5)),
    ]
}

/// Rolls after which one must have interrupted a stream.
const MAX_ROLLS: usize = 20;

/// Addresses of the replicas. If one is away, the client tries the other.
type Replicas = watch::Receiver<[Client; 2]>;

/// `RUNNEL_TEST_ROLLS` restarts of each replica, and more until one interrupts a stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_loses_no_run_or_event() {
    let soon = |config: &mut Config| config.runs = "lease_seconds = 2.0".into();
    let mut stage = or_skip!(OwnStage::on(Postgres, soon).await);
    stage.runner.answer_all(steady);
    let mut replica = stage.gateway.start_replica().await;
    let replicas = watch::Sender::new([stage.client.clone(), replica.client.clone()]);
    let enough = CancellationToken::new();
    let gaps = Arc::<AtomicUsize>::default();
    let mut load = JoinSet::new();
    for worker in 0..WORKERS {
        let gaps = Arc::clone(&gaps);
        load.spawn(work(replicas.subscribe(), worker, enough.clone(), gaps));
    }
    let mut rolls = 0;
    while rolls < number("RUNNEL_TEST_ROLLS", 2) || gaps.load(Ordering::Relaxed) == 0 {
        assert!(rolls < MAX_ROLLS, "no roll met a stream");
        rolls += 1;
        stage.gateway.stop().await;
        stage.gateway.restart().await;
        replica.stop().await;
        replica.restart().await;
        replicas.send_replace([stage.client.clone(), replica.client.clone()]);
    }
    enough.cancel();
    let done = within("the clients to finish", load.join_all()).await;
    let runs: Vec<_> = done.into_iter().flatten().collect();
    eprintln!(
        "{} runs, {} streams that broke off and were resumed",
        runs.len(),
        gaps.load(Ordering::Relaxed)
    );
    assert!(runs.len() >= WORKERS, "{} runs", runs.len());
    for (run_id, seen) in &runs {
        let ledger = stage.client.ledger(run_id).await;
        ledger.assert_valid(run_id);
        assert_eq!(&ledger.0, seen, "the client has seen all of it, once");
        assert_eq!(ledger.types().last().unwrap(), "run.completed");
        assert_eq!(stage.runner.posts(run_id), 1);
    }
    let requests = stage.runner.requests();
    let requests = requests.iter().filter(|request| request.is_run()).count();
    assert_eq!(requests, runs.len(), "and there are no others");
}

/// Runs with all events read from them. Counts interrupted streams.
async fn work(
    replicas: Replicas,
    worker: usize,
    enough: CancellationToken,
    gaps: Arc<AtomicUsize>,
) -> Vec<(String, Vec<String>)> {
    let mut runs = Vec::new();
    let mut turn = worker;
    while !enough.is_cancelled() {
        let event = Arc::new(message(&Uuid::new_v4().to_string()));
        let run_id = loop {
            let client = one_of(&replicas, turn);
            match send(client.posting(&event)).await {
                Ok(answer) if answer.status == 202 => break answer.run_id(),
                // The replica is stopping or away: post the same event to the other.
                Ok(answer) => assert_eq!(answer.status, 503, "{}", answer.body),
                Err(error) => assert!(
                    error.is_request() || error.is_body() || error.is_decode(),
                    "{error:?}"
                ),
            }
            turn += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        turn += 1;
        let mut seen: Vec<String> = Vec::new();
        while !is_complete(&seen) {
            let client = one_of(&replicas, turn);
            turn += 1;
            let request = client
                .following(&run_id)
                .header("last-event-id", seen.len());
            let Ok(mut stream) = stream(request).await else {
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let status = stream.response.status();
            if status == StatusCode::SERVICE_UNAVAILABLE {
                continue;
            }
            assert_eq!(status, StatusCode::OK);
            while let Some(frame) = stream.event().await {
                seen.push(frame.data);
            }
            if !is_complete(&seen) {
                gaps.fetch_add(1, Ordering::Relaxed);
            }
        }
        runs.push((run_id, seen));
    }
    runs
}

fn is_complete(events: &[String]) -> bool {
    events.last().is_some_and(|last| last.contains("\"run."))
}

fn one_of(replicas: &Replicas, turn: usize) -> Client {
    replicas.borrow()[turn % 2].clone()
}
