//! The load: clients that post an event, read its run to the end and check it, in a loop.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tokio::task::LocalSet;
use uuid::Uuid;

use crate::client::{LoadConnection, StreamCheck};
use crate::figures::percentile;
use crate::process::cpu;

/// Warm-up of every scenario, not counted.
const WARM_UP: Duration = Duration::from_millis(500);
/// Maximum failures that are kept as text; all are counted.
const MAX_FAILURE_TEXTS: usize = 3;

/// Runs of one conversation in a fixed load. A service that grows has more conversations, not longer ones.
const CONVERSATION_RUNS: usize = 20;

/// A measured process, and the form of its requests.
#[derive(Clone)]
pub(crate) struct LoadTarget {
    pub(crate) name: &'static str,
    pub(crate) address: String,
    /// Process id; `None` for the stub runner itself.
    pub(crate) pid: Option<u32>,
    pub(crate) ask: RequestKind,
}

#[derive(Clone)]
pub(crate) enum RequestKind {
    /// `POST /runs`, as the gateway sends it.
    Runner,
    /// `POST /v1/events` with this key.
    Gateway { key: String },
    /// A call of a handler of Restate's service.
    Restate { handler: &'static str },
}

impl LoadTarget {
    /// The request of one run, with an idempotency key of its own.
    pub(crate) fn request(&self, client: usize, accept: &str, event: &str) -> Vec<u8> {
        let body = format!(
            "{{\"event_type\":\"{event}\",\"conversation\":{{\"conversation_id\":\"c-{client}\"}},\
             \"actor\":{{\"actor_type\":\"user\",\"actor_id\":\"u-{client}\"}},\
             \"input\":{{\"text\":\"hello big world\"}}}}"
        );
        let (path, about) = match &self.ask {
            RequestKind::Runner => {
                let about = format!("runnel-run-id: {}\r\n", Uuid::nil());
                ("/runs".to_owned(), about)
            }
            RequestKind::Gateway { key } => {
                let own = Uuid::now_v7();
                let about = format!("authorization: Bearer {key}\r\nidempotency-key: {own}\r\n");
                ("/v1/events".to_owned(), about)
            }
            RequestKind::Restate { handler } => (format!("/bench/{handler}"), String::new()),
        };
        format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\n{about}content-type: application/json\r\n\
             accept: {accept}\r\ncontent-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        )
        .into_bytes()
    }

    /// Posts an event, and returns the id of its run.
    pub(crate) async fn post_run(
        &self,
        connection: &mut LoadConnection,
        client: usize,
    ) -> anyhow::Result<String> {
        let request = self.request(client, "application/json", "message.received");
        connection.send(&request).await?;
        let mut body = Vec::new();
        let status = connection
            .answer(|part| body.extend_from_slice(part))
            .await?;
        ensure!(status == 202, "an event got HTTP {status}");
        let accepted: Value = serde_json::from_slice(&body)?;
        Ok(accepted["run_id"].as_str().context("a run")?.to_owned())
    }
}

/// A request of the client API without a body. `line`: method and path. `about`: further headers, each with its line
/// end.
pub(crate) fn client_request(line: &str, key: &str, about: &str) -> String {
    format!("{line} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n{about}\r\n")
}

/// Figures of one target in one scenario of one round.
#[derive(Clone, Debug, Default)]
pub(crate) struct LoadOutcome {
    pub(crate) seconds: f64,
    pub(crate) runs: u64,
    pub(crate) events: u64,
    pub(crate) failures: u64,
    /// Texts of the first failures.
    pub(crate) errors: Vec<String>,
    /// CPU seconds of the target, of the stub runner and of the load generator.
    pub(crate) cpu: f64,
    pub(crate) cpu_stub: f64,
    pub(crate) cpu_load: f64,
    /// Milliseconds from the request to the first event.
    pub(crate) first_event_ms: Vec<f64>,
    /// Milliseconds from the request to the end of the run.
    pub(crate) run_ms: Vec<f64>,
}

/// Runs per second of each round.
pub(crate) fn run_rates(rounds: &[LoadOutcome]) -> Vec<f64> {
    let rate = |one: &LoadOutcome| one.runs as f64 / one.seconds;
    rounds.iter().map(rate).collect()
}

/// Time from the request to the end of a run at this percentile, in milliseconds.
pub(crate) fn run_ms(rounds: &[LoadOutcome], at: f64) -> f64 {
    let all = rounds.iter().flat_map(|one| one.run_ms.clone());
    percentile(&all.collect::<Vec<_>>(), at)
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    WarmUp,
    Counting,
    Over,
}

struct Counts {
    phase: Cell<Phase>,
    outcome: RefCell<LoadOutcome>,
}

impl Counts {
    fn new(phase: Phase) -> Rc<Self> {
        Rc::new(Self {
            phase: Cell::new(phase),
            outcome: RefCell::default(),
        })
    }

    fn count(&self, count: impl FnOnce(&mut LoadOutcome)) {
        if self.phase.get() == Phase::Counting {
            count(&mut self.outcome.borrow_mut());
        }
    }

    /// Records a failure in every phase, including warm-up and cool-down.
    fn fail(&self, target: &LoadTarget, error: &anyhow::Error) {
        let mut outcome = self.outcome.borrow_mut();
        outcome.failures += 1;
        if outcome.errors.len() < MAX_FAILURE_TEXTS {
            outcome.errors.push(format!("{}: {error:#}", target.name));
        }
    }
}

/// Drives `clients` clients for `seconds`. Each run must bring `events` events and its terminal event.
pub(crate) async fn drive(
    target: &LoadTarget,
    stub: u32,
    clients: usize,
    events: u64,
    seconds: f64,
) -> anyhow::Result<LoadOutcome> {
    let counts = Counts::new(Phase::WarmUp);
    let local = LocalSet::new();
    let working: Vec<_> = (0..clients)
        .map(|client| {
            let (target, counts) = (target.clone(), Rc::clone(&counts));
            local.spawn_local(async move { work(&target, client, events, &counts).await })
        })
        .collect();
    let own = std::process::id();
    let used = || -> anyhow::Result<[Duration; 3]> {
        Ok([cpu(target.pid.unwrap_or(stub))?, cpu(stub)?, cpu(own)?])
    };
    local
        .run_until(async {
            tokio::time::sleep(WARM_UP).await;
            let (before, begin) = (used()?, Instant::now());
            counts.phase.set(Phase::Counting);
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            counts.phase.set(Phase::Over);
            let (after, elapsed) = (used()?, begin.elapsed());
            for client in working {
                client.await?;
            }
            let mut outcome = counts.outcome.take();
            let [target, stub, load] =
                [0, 1, 2].map(|one| (after[one].saturating_sub(before[one])).as_secs_f64());
            (outcome.cpu, outcome.cpu_stub, outcome.cpu_load) = (target, stub, load);
            outcome.seconds = elapsed.as_secs_f64();
            Ok(outcome)
        })
        .await
}

/// A fixed number of runs by concurrent clients.
#[derive(Clone, Copy)]
pub(crate) struct FixedLoad {
    pub(crate) clients: usize,
    /// Runs of each client.
    pub(crate) runs: usize,
    /// Events of each run, with the terminal one.
    pub(crate) events: u64,
    /// Number of the first conversation.
    pub(crate) first_conversation: usize,
}

/// Makes these runs, all of them counted. Fails on the first error.
pub(crate) async fn complete(target: &LoadTarget, load: FixedLoad) -> anyhow::Result<LoadOutcome> {
    let counts = Counts::new(Phase::Counting);
    let local = LocalSet::new();
    let pid = target.pid.context("a process of its own")?;
    let (used, begin) = (cpu(pid)?, Instant::now());
    let clients: Vec<_> = (0..load.clients)
        .map(|client| {
            let (target, counts) = (target.clone(), Rc::clone(&counts));
            local.spawn_local(async move { complete_own(&target, client, load, &counts).await })
        })
        .collect();
    let all = async {
        for client in clients {
            client.await??;
        }
        anyhow::Ok(())
    };
    local.run_until(all).await?;
    let mut outcome = counts.outcome.take();
    outcome.seconds = begin.elapsed().as_secs_f64();
    outcome.cpu = cpu(pid)?.saturating_sub(used).as_secs_f64();
    Ok(outcome)
}

/// Makes the runs of one client.
async fn complete_own(
    target: &LoadTarget,
    client: usize,
    load: FixedLoad,
    counts: &Counts,
) -> anyhow::Result<()> {
    let mut connection = None;
    for number in 0..load.runs {
        let own = client + load.clients * (number / CONVERSATION_RUNS);
        let conversation = load.first_conversation + own;
        one_run(target, conversation, load.events, counts, &mut connection).await?;
        counts.count(|outcome| outcome.runs += 1);
    }
    Ok(())
}

async fn work(target: &LoadTarget, client: usize, events: u64, counts: &Counts) {
    let mut connection = None;
    while counts.phase.get() != Phase::Over {
        let ran = one_run(target, client, events, counts, &mut connection).await;
        match ran {
            Ok(()) => counts.count(|outcome| outcome.runs += 1),
            Err(error) => {
                connection = None;
                counts.fail(target, &error);
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn one_run(
    target: &LoadTarget,
    client: usize,
    events: u64,
    counts: &Counts,
    idle_connection: &mut Option<LoadConnection>,
) -> anyhow::Result<()> {
    let mut connection = match idle_connection.take() {
        Some(connection) => connection,
        None => LoadConnection::open(&target.address).await?,
    };
    let request = target.request(client, "text/event-stream", "message.received");
    let begin = Instant::now();
    connection.send(&request).await.context("the request")?;
    let (mut stream, mut first) = (StreamCheck::new(), None);
    let read = |part: &[u8]| {
        let before = stream.events;
        stream.push(part);
        if first.is_none() && stream.events > 0 {
            first = Some(begin.elapsed());
        }
        counts.count(|outcome| outcome.events += stream.events - before);
    };
    let status = connection.answer(read).await?;
    let total = begin.elapsed();
    ensure!(status == 200, "HTTP {status}");
    // Restate answers 200 only after the end of a handler, in one piece.
    let is_answer = matches!(target.ask, RequestKind::Restate { .. });
    ensure!(
        is_answer || stream.is_complete(events),
        "incomplete: {stream:?}"
    );
    let first = first.unwrap_or(total).as_secs_f64() * 1000.0;
    let total = total.as_secs_f64() * 1000.0;
    counts.count(|outcome| {
        outcome.first_event_ms.push(first);
        outcome.run_ms.push(total);
    });
    *idle_connection = Some(connection);
    Ok(())
}
