//! Short runs while many occurrences of schedules are due at once.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use clock::Clock;
use serde_json::{Value, json};

use crate::Options;
use crate::client::LoadConnection;
use crate::database::Database;
use crate::figures::{median, write};
use crate::load::{FixedLoad, LoadOutcome, LoadTarget, complete, run_ms, run_rates};
use crate::process::machine;
use crate::stage::{BenchStage, ConfigAdditions, MeasuredProcess, play, stub_counts};
use crate::stub::StubScript;

const DELTAS: usize = 10;
const CLIENTS: usize = 32;
/// Seconds from the begin until the first due time, for the creation of all schedules.
const CREATION_SECONDS: i64 = 30;
/// Limit of the occurrences.
const MAX_DURATION: Duration = Duration::from_mins(20);

#[derive(Args)]
pub(crate) struct DueArgs {
    /// Schedules of one second each.
    #[arg(long, default_value_t = 1000)]
    schedules: usize,
    /// Missed due times of each, at most 100.
    #[arg(long, default_value_t = 100)]
    times: i64,
    /// Short runs in a round.
    #[arg(long, default_value_t = 10_000)]
    runs: usize,
}

/// Measures each database: short runs alone, then with all occurrences due at the start of the gateway.
pub(crate) async fn run(options: &Options, args: &DueArgs) -> anyhow::Result<()> {
    let stage = BenchStage::new(options).await?;
    let stub = stage.stub().await?;
    let script = StubScript {
        deltas: DELTAS,
        per_write: options.per_write,
        ..StubScript::default()
    };
    play(&stub.address, script).await?;
    println!("{}; runs of {DELTAS} deltas, {CLIENTS} clients", machine());
    let mut figures = Vec::new();
    for database in stage.databases() {
        figures.push(measure(&stage, &stub, &database, args).await?);
    }
    write(options, &json!({"machine": machine(), "due": figures}))
}

async fn measure(
    stage: &BenchStage,
    stub: &MeasuredProcess,
    database: &Database,
    args: &DueArgs,
) -> anyhow::Result<Value> {
    let name = database.name;
    let additions = ConfigAdditions::default();
    let started = stage.gateway(name, database, &stub.address, additions);
    let (gateway, target) = started.await?;
    let mut load = RunLoad {
        runs: args.runs,
        made: 0,
    };
    let mut alone = Vec::new();
    for _ in 0..stage.options.rounds {
        alone.push(load.round(&target).await?);
    }
    let last_due = create_schedules(stage, &target, args).await?;
    gateway.served.kill().await?;
    tokio::time::sleep(until_after(last_due)?).await;

    let (_, before) = stub_counts(&stub.address).await?;
    let (begin, made) = (Instant::now(), load.made);
    let started = stage.start(name, name, gateway.key.clone());
    let (_gateway, target) = started.await?;
    let expected = args.schedules as u64 * args.times.unsigned_abs();
    let mut with = Vec::new();
    loop {
        with.push(load.round(&target).await?);
        let (_, now) = stub_counts(&stub.address).await?;
        if now - before - (load.made - made) as u64 >= expected {
            break;
        }
        ensure!(
            begin.elapsed() < MAX_DURATION,
            "{expected} occurrences have not run after {MAX_DURATION:?}"
        );
    }
    let seconds = begin.elapsed().as_secs_f64();
    let [before, during] = [&alone, &with].map(|rounds| median(&run_rates(rounds)));
    let [p99_before, p99_during] = [&alone, &with].map(|rounds| run_ms(rounds, 99.0));
    println!(
        "{name:<12} {expected} occurrences ran within {seconds:.0} s; {during:.0} short runs/s meanwhile, {before:.0} \
         before: {:+.1} %; p99 {p99_during:.0} ms, {p99_before:.0} before",
        (during / before - 1.0) * 100.0
    );
    Ok(json!({
        "target": name, "occurrences": expected, "seconds": seconds,
        "runs_per_second": during, "runs_per_second_before": before,
        "p99_ms": p99_during, "p99_ms_before": p99_before,
    }))
}

/// Rounds of short runs in new conversations.
struct RunLoad {
    runs: usize,
    made: usize,
}

impl RunLoad {
    async fn round(&mut self, target: &LoadTarget) -> anyhow::Result<LoadOutcome> {
        let load = FixedLoad {
            clients: CLIENTS,
            runs: (self.runs / CLIENTS).max(1),
            events: DELTAS as u64 + 1,
            first_conversation: self.made,
        };
        let outcome = complete(target, load).await?;
        self.made += load.clients * load.runs;
        Ok(outcome)
    }
}

/// Creates the schedules, and returns their last due time in epoch seconds.
async fn create_schedules(
    stage: &BenchStage,
    target: &LoadTarget,
    args: &DueArgs,
) -> anyhow::Result<i64> {
    let key = stage.create_key(target.name, "admin").await?.key;
    let first = Clock::system().now_seconds() + CREATION_SECONDS;
    let last = first + args.times - 1;
    let mut connection = LoadConnection::open(&target.address).await?;
    for number in 0..args.schedules {
        let spec = json!({"name": format!("due-{number}"), "agent": "main", "every": "1s", "misfire": "all",
            "starts_at": first, "ends_at": last});
        let body = spec.to_string();
        let request = format!(
            "POST /v1/schedules HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        connection.send(request.as_bytes()).await?;
        let status = connection.answer(|_| {}).await?;
        ensure!(status == 201, "a schedule got HTTP {status}");
    }
    ensure!(
        until_after(first).is_ok(),
        "the creation took longer than {CREATION_SECONDS} s"
    );
    Ok(last)
}

/// Time until a second after `time`. Fails if it has passed.
fn until_after(time: i64) -> anyhow::Result<Duration> {
    let left = u64::try_from(time + 1 - Clock::system().now_seconds());
    left.map(Duration::from_secs).context("the time has passed")
}
