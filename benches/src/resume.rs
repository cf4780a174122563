//! Time from the SIGKILL of a gateway until its run continues at a client. The runner is resumable and sends a result
//! every 10 ms, also without a gateway.

use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use protocol::manifest::{AgentRunnerManifest, Capabilities, I18n};
use runner_kit::{CancellationToken, ResultStream, RunHandle, Runner, results};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::Options;
use crate::client::{Framing, LoadConnection};
use crate::database::Database;
use crate::figures::{percentile, write};
use crate::load::{LoadTarget, client_request};
use crate::process::machine;
use crate::stage::{BenchStage, ConfigAdditions, Gateway, SECRET};
use crate::stub::RUNNER_ID;

/// Pause of the runner after each result.
const PAUSE: Duration = Duration::from_millis(10);
/// Results that the client has read before a kill.
const WARM_UP: u64 = 20;
/// Start of the times in results.
static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Options of `resume`.
#[derive(Args, Clone, Copy)]
pub(crate) struct ResumeArgs {
    /// Kills on each database.
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// `runs.lease_seconds` of the gateways.
    #[arg(long, default_value_t = 15.0)]
    lease_seconds: f64,
}

pub(crate) async fn run(options: &Options, args: &ResumeArgs) -> anyhow::Result<()> {
    ensure!(args.kills > 0, "--kills counts from 1");
    let stage = BenchStage::new(options).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let runner = listener.local_addr()?.to_string();
    let router = runner_kit::router(vec![Arc::new(TimeRunner)], SECRET.parse()?);
    let mut serving = JoinSet::new();
    serving.spawn(runner_kit::serve(
        listener,
        router,
        CancellationToken::new(),
    ));
    println!("{}", machine());
    let mut figures = Vec::new();
    for database in stage.databases() {
        let bench = ResumeBench {
            stage: &stage,
            database: &database,
            runner: &runner,
            runs: format!("lease_seconds = {:?}", args.lease_seconds),
        };
        let times = bench.measure(args.kills).await?;
        let [p50, longest] = [50.0, 100.0].map(|at| percentile(&times, at));
        println!(
            "{:<12} kill → next result: p50 {p50:.0} ms, longest {longest:.0} ms, {} kills, lease {} s",
            database.name, args.kills, args.lease_seconds
        );
        figures.push(json!({
            "target": database.name, "p50_ms": p50, "longest_ms": longest, "kills": args.kills,
            "lease_seconds": args.lease_seconds,
        }));
    }
    write(options, &json!({"resume": figures}))
}

/// A runner whose results are the microseconds since the start of the bench.
struct TimeRunner;

impl Runner for TimeRunner {
    fn manifest(&self) -> AgentRunnerManifest {
        let id = RUNNER_ID.parse().expect("an id of three parts");
        let label = I18n::from([("en_US".to_owned(), "Time".to_owned())]);
        AgentRunnerManifest {
            capabilities: Capabilities {
                streaming: true,
                resumable: true,
                ..Default::default()
            },
            ..AgentRunnerManifest::new(id, label)
        }
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        runner_kit::stream(|out| async move {
            loop {
                run.until_cancelled(tokio::time::sleep(PAUSE)).await?;
                let time = BEGIN.elapsed().as_micros();
                out.send(results::delta(time.to_string())).await;
            }
        })
    }
}

/// The gateways of one database.
struct ResumeBench<'a> {
    stage: &'a BenchStage,
    database: &'a Database,
    /// Address of the runner.
    runner: &'a str,
    /// Lines of section `[runs]`.
    runs: String,
}

/// A gateway and its directory.
struct BenchReplica {
    instance: String,
    gateway: Gateway,
    target: LoadTarget,
}

impl ResumeBench<'_> {
    /// Milliseconds of each kill. Another replica continues the run, or on SQLite the next start.
    async fn measure(&self, kills: usize) -> anyhow::Result<Vec<f64>> {
        let count = if self.database.is_on_server() { 2 } else { 1 };
        let mut replicas = Vec::new();
        for number in 0..count {
            replicas.push(self.configure(number).await?);
        }
        let mut times = Vec::new();
        for number in 0..kills {
            times.push(self.kill_first(&mut replicas, number).await?);
        }
        Ok(times)
    }

    async fn configure(&self, number: usize) -> anyhow::Result<BenchReplica> {
        let instance = format!("{}-{number}", self.database.name);
        let extra = ConfigAdditions {
            runs: &self.runs,
            ..ConfigAdditions::default()
        };
        let starting = self
            .stage
            .gateway(&instance, self.database, self.runner, extra);
        let (gateway, target) = starting.await?;
        Ok(BenchReplica {
            instance,
            gateway,
            target,
        })
    }

    /// Kills the gateway that drives a run, and starts it again. Returns the milliseconds until the client has a result
    /// that the runner sent after the kill.
    async fn kill_first(
        &self,
        replicas: &mut Vec<BenchReplica>,
        number: usize,
    ) -> anyhow::Result<f64> {
        let owner = replicas.remove(0);
        let mut posting = LoadConnection::open(&owner.target.address).await?;
        let run = owner.target.post_run(&mut posting, number).await?;
        let mut stream = TimedStream::open(replicas.first().unwrap_or(&owner), &run, 0).await?;
        stream
            .read_until(|events| events.last_id >= WARM_UP)
            .await?;

        let BenchReplica {
            instance, gateway, ..
        } = owner;
        let killed = BEGIN.elapsed();
        gateway.served.kill().await?;
        if replicas.is_empty() {
            let restarted = self.restart(&instance, &gateway.key).await?;
            stream = TimedStream::open(&restarted, &run, stream.events.last_id).await?;
            replicas.push(restarted);
        }
        stream.read_until(|events| events.newest > killed).await?;
        let taken = BEGIN.elapsed().saturating_sub(killed);

        replicas[0].cancel(&run).await?;
        if self.database.is_on_server() {
            replicas.push(self.restart(&instance, &gateway.key).await?);
        }
        Ok(taken.as_secs_f64() * 1000.0)
    }

    async fn restart(&self, instance: &str, key: &str) -> anyhow::Result<BenchReplica> {
        let starting = self
            .stage
            .start(instance, self.database.name, key.to_owned());
        let (gateway, target) = starting.await?;
        Ok(BenchReplica {
            instance: instance.to_owned(),
            gateway,
            target,
        })
    }
}

impl BenchReplica {
    async fn cancel(&self, run: &str) -> anyhow::Result<()> {
        let mut connection = LoadConnection::open(&self.target.address).await?;
        let line = format!("POST /v1/runs/{run}/cancel");
        let request = client_request(&line, &self.gateway.key, "content-length: 0\r\n");
        connection.send(request.as_bytes()).await?;
        let status = connection.answer(|_| {}).await?;
        ensure!((200..300).contains(&status), "a cancel got HTTP {status}");
        Ok(())
    }
}

/// Stream of a run at a client.
struct TimedStream {
    connection: LoadConnection,
    framing: Framing,
    events: EventTimes,
}

impl TimedStream {
    /// Opens the stream after this event.
    async fn open(replica: &BenchReplica, run: &str, after: u64) -> anyhow::Result<Self> {
        let mut connection = LoadConnection::open(&replica.target.address).await?;
        let about = format!("accept: text/event-stream\r\nlast-event-id: {after}\r\n");
        let line = format!("GET /v1/runs/{run}/events");
        let request = client_request(&line, &replica.gateway.key, &about);
        connection.send(request.as_bytes()).await?;
        let mut events = EventTimes {
            line: Vec::new(),
            last_id: after,
            is_dense: true,
            newest: Duration::ZERO,
        };
        let reading = connection.answer_until(|part| {
            events.push(part);
            true
        });
        let (status, framing) = reading.await?;
        ensure!(status == 200, "the stream got HTTP {status}");
        Ok(Self {
            connection,
            framing,
            events,
        })
    }

    async fn read_until(&mut self, enough: impl Fn(&EventTimes) -> bool) -> anyhow::Result<()> {
        let events = &mut self.events;
        if !enough(events) {
            let reading = self.connection.rest_until(&mut self.framing, |part| {
                events.push(part);
                enough(events)
            });
            reading.await?;
        }
        ensure!(self.events.is_dense, "an event is missing or doubled");
        ensure!(enough(&self.events), "the stream ended too early");
        Ok(())
    }
}

/// Ids of a stream, and the times in its results.
struct EventTimes {
    /// An incomplete line.
    line: Vec<u8>,
    last_id: u64,
    /// True when each id is the next one.
    is_dense: bool,
    /// Time in the last result.
    newest: Duration,
}

impl EventTimes {
    fn push(&mut self, part: &[u8]) {
        for byte in part {
            if *byte == b'\n' {
                let line = std::mem::take(&mut self.line);
                self.end_line(&String::from_utf8_lossy(&line));
            } else {
                self.line.push(*byte);
            }
        }
    }

    fn end_line(&mut self, line: &str) {
        if let Some(id) = line.strip_prefix("id: ") {
            self.last_id += 1;
            self.is_dense &= id.parse() == Ok(self.last_id);
        } else if let Some((_, text)) = line.split_once("\"content\":\"") {
            let time = text.split('"').next().and_then(|time| time.parse().ok());
            self.newest = time.map_or(self.newest, Duration::from_micros);
        }
    }
}
