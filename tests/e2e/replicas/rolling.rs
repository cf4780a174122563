//! Replicas that stop or die one after the other while clients post and read.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rstest::rstest;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::support::client::{Client, message, read_through, send};
use crate::support::gateway::{Config, Replica};
use crate::support::runner::StubRunner;
use crate::support::script::{Run, ScriptStep, sse_head};
use crate::support::{OwnStage, Postgres, RandomDurations, number, seed, within};

const WORKERS: usize = 6;
const EVENTS: usize = 31;

/// A run of about 150 ms, so that a shutdown meets runs of every age. A resume gets the rest.
fn steady(run: &Run) -> Vec<ScriptStep> {
    let frames = run.talk(EVENTS - 1).into_iter().map(String::into_bytes);
    let frames = frames.skip(usize::try_from(run.after).unwrap());
    vec![
        sse_head(),
        ScriptStep::Pace(frames.collect(), Duration::from_millis(5)),
    ]
}

/// Rolls after which one must have interrupted a stream.
const MAX_ROLLS: usize = 20;
/// Maximum time before a kill.
const LONGEST: Duration = Duration::from_millis(300);

/// Addresses of the replicas. If one is away, the client tries another.
type Replicas = watch::Receiver<Vec<Client>>;

/// Capability of the runner under load.
#[derive(Clone, Copy, Debug, PartialEq)]
enum RunnerCapability {
    Streaming,
    Resumable,
}
use RunnerCapability::{Resumable, Streaming};

/// Clients that post events and read their runs, in a loop.
struct ReplicaLoad {
    replicas: watch::Sender<Vec<Client>>,
    enough: CancellationToken,
    /// Interrupted streams.
    gaps: Arc<AtomicUsize>,
    workers: JoinSet<Vec<ReadRun>>,
}

/// A run, and the events that its client has read.
struct ReadRun {
    run_id: String,
    seen: Vec<String>,
}

impl ReplicaLoad {
    fn start(replicas: Vec<Client>) -> Self {
        let mut load = Self {
            replicas: watch::Sender::new(replicas),
            enough: CancellationToken::new(),
            gaps: Arc::default(),
            workers: JoinSet::new(),
        };
        for worker in 0..WORKERS {
            let (replicas, enough) = (load.replicas.subscribe(), load.enough.clone());
            let working = work(replicas, worker, enough, Arc::clone(&load.gaps));
            load.workers.spawn(working);
        }
        load
    }

    fn gaps(&self) -> usize {
        self.gaps.load(Ordering::Relaxed)
    }

    /// Ends the load after the runs of now.
    async fn finish(self) -> Vec<ReadRun> {
        self.enough.cancel();
        let done = within("the clients to finish", self.workers.join_all()).await;
        let runs: Vec<_> = done.into_iter().flatten().collect();
        let gaps = self.gaps.load(Ordering::Relaxed);
        eprintln!("{} runs, {gaps} interrupted streams", runs.len());
        assert!(runs.len() >= WORKERS, "{} runs", runs.len());
        runs
    }
}

/// True if a gateway has attached to a runner again.
fn has_resumed(runner: &StubRunner) -> bool {
    let requests = runner.requests();
    requests
        .iter()
        .any(|request| request.path.ends_with("/resume"))
}

/// The client has read each result of the runner once.
async fn assert_complete(stage: &OwnStage, run: &ReadRun) {
    let ledger = stage.client.ledger(&run.run_id).await;
    ledger.assert_valid(&run.run_id);
    assert_eq!(ledger.0, run.seen);
    assert_eq!(ledger.types().last().unwrap(), "run.completed");
    let words: Vec<_> = (1..EVENTS).map(|n| format!("{n} ")).collect();
    assert_eq!(ledger.text(), words.concat());
    assert_eq!(stage.runner.posts(&run.run_id), 1);
}

/// `RUNNEL_TEST_ROLLS` restarts of each replica, and more until one interrupts a stream.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolling_restart_loses_no_run_or_event(
    #[values(Streaming, Resumable)] capability: RunnerCapability,
) {
    let runner = match capability {
        Streaming => StubRunner::start().await,
        Resumable => StubRunner::start_resumable(30).await,
    };
    runner.answer_all(steady);
    runner.answer_resumes(steady);
    let soon = |config: &mut Config| config.runs = "lease_seconds = 2.0".into();
    let mut stage = or_skip!(OwnStage::of(Postgres, runner, soon).await);
    let mut replica = stage.gateway.start_replica().await;
    let load = ReplicaLoad::start(vec![stage.client.clone(), replica.client.clone()]);
    let mut rolls = 0;
    while rolls < number("RUNNEL_TEST_ROLLS", 2)
        || load.gaps() == 0
        || capability == Resumable && !has_resumed(&stage.runner)
    {
        assert!(rolls < MAX_ROLLS, "no roll met a stream");
        rolls += 1;
        stage.gateway.stop().await;
        stage.gateway.restart().await;
        replica.stop().await;
        replica.restart().await;
        let replicas = vec![stage.client.clone(), replica.client.clone()];
        load.replicas.send_replace(replicas);
    }
    let runs = load.finish().await;
    for run in &runs {
        assert_complete(&stage, run).await;
    }
    let requests = stage.runner.requests();
    let requests = requests.iter().filter(|request| request.is_run()).count();
    assert_eq!(requests, runs.len(), "and there are no others");
}

/// `RUNNEL_TEST_ROLLS` kills of each of three replicas, and more until a run was resumed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_replicas_lose_no_resumable_run() {
    let runner = StubRunner::start_resumable(30).await;
    runner.answer_all(steady);
    runner.answer_resumes(steady);
    let soon = |config: &mut Config| config.runs = "lease_seconds = 1.5".into();
    let mut stage = or_skip!(OwnStage::of(Postgres, runner, soon).await);
    let mut replicas = Vec::new();
    for _ in 0..2 {
        replicas.push(stage.gateway.start_replica().await);
    }
    let load = ReplicaLoad::start(clients(&stage, &replicas));
    let mut moments = RandomDurations(seed());
    let mut rolls = 0;
    while rolls < number("RUNNEL_TEST_ROLLS", 2) || !has_resumed(&stage.runner) {
        assert!(rolls < MAX_ROLLS, "no kill met a run");
        rolls += 1;
        for victim in 0..=replicas.len() {
            // Not a wait for a condition: the test needs a kill at this moment.
            tokio::time::sleep(moments.up_to(LONGEST)).await;
            if let Some(replica) = replicas.get_mut(victim) {
                replica.kill().await;
                replica.restart().await;
            } else {
                stage.gateway.kill().await;
                stage.gateway.restart().await;
            }
            load.replicas.send_replace(clients(&stage, &replicas));
        }
    }
    let mut unposted = 0;
    for run in load.finish().await {
        if stage.runner.posts(&run.run_id) > 0 {
            assert_complete(&stage, &run).await;
            continue;
        }
        // The kill came between the commit of the dispatch and the POST, so the runner does not have the run.
        unposted += 1;
        let ended = stage.client.run(&run.run_id).await;
        assert_eq!(ended["error"]["code"], "runner.lost", "{ended}");
    }
    eprintln!("{} kills, {unposted} runs not posted", 3 * rolls);
}

fn clients(stage: &OwnStage, replicas: &[Replica]) -> Vec<Client> {
    let replicas = replicas.iter().map(|replica| replica.client.clone());
    replicas.chain([stage.client.clone()]).collect()
}

/// Posts events and reads their runs, each connection at another replica. Counts interrupted streams.
async fn work(
    replicas: Replicas,
    worker: usize,
    enough: CancellationToken,
    gaps: Arc<AtomicUsize>,
) -> Vec<ReadRun> {
    let mut runs = Vec::new();
    let mut turn = worker;
    let mut next = || {
        turn += 1;
        let replicas = replicas.borrow();
        replicas[turn % replicas.len()].clone()
    };
    while !enough.is_cancelled() {
        let event = message(&Uuid::new_v4().to_string());
        let run_id = loop {
            match send(next().posting(&event)).await {
                Ok(answer) if answer.status == 202 => break answer.run_id(),
                // The replica is stopping or away: post the same event to another.
                Ok(answer) => assert_eq!(answer.status, 503, "{}", answer.body),
                Err(error) => assert!(
                    error.is_request() || error.is_body() || error.is_decode(),
                    "{error:?}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let read = read_through(&run_id, &mut next).await;
        gaps.fetch_add(read.breaks, Ordering::Relaxed);
        runs.push(ReadRun {
            run_id,
            seen: read.events,
        });
    }
    runs
}
