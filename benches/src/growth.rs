//! Short runs, lists and the file while a database grows, and short runs while the ledger of old runs is deleted.

mod reads;

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde_json::{Value, json};

use crate::Options;
use crate::database::Database;
use crate::figures::{median, ratios, write};
use crate::load::{FixedLoad, LoadOutcome, LoadTarget, RequestKind, complete, run_ms, run_rates};
use crate::process::machine;
use crate::stage::{BenchStage, ConfigAdditions, Gateway, MeasuredProcess, passthrough, play};
use crate::stub::StubScript;
use reads::{ReadLatencies, RunReader};

const DELTAS: usize = 10;
/// Clients of the measurements.
const CLIENTS: usize = 32;
/// Clients that fill the database.
const FILLING: usize = 256;
/// Old runs whose ledger is deleted under load, if the database has as many.
const OLD_RUNS: usize = 100_000;
/// Limit of the deletion.
const MAX_DELETION: Duration = Duration::from_mins(20);
/// Maximum slowdown of short runs during the deletion.
const MAX_SLOWDOWN: f64 = 0.1;
/// Retention of less than a second: the runs before the load are old, and the oldest are deleted first.
const RETENTION: ConfigAdditions<'_> = ConfigAdditions {
    server: "",
    runs: "",
    allow: "",
    tables: "[ledger]\nretention_days = 0.00001\n",
};

#[derive(Args)]
pub(crate) struct GrowthArgs {
    /// Numbers of runs at which the database is measured, in order.
    #[arg(long, value_delimiter = ',', default_values_t = [10_000, 100_000, 1_000_000])]
    sizes: Vec<usize>,
    /// Runs of each target in a round.
    #[arg(long, default_value_t = 10_000)]
    runs: usize,
}

/// Measures each database: at each size, then with deletion.
pub(crate) async fn run(options: &Options, args: &GrowthArgs) -> anyhow::Result<()> {
    ensure!(
        args.sizes.is_sorted() && args.sizes.first().is_some_and(|size| *size > 0),
        "--sizes must rise from 1"
    );
    let stage = BenchStage::new(options).await?;
    let stub = stage.stub().await?;
    let script = StubScript {
        deltas: DELTAS,
        per_write: options.per_write,
        ..StubScript::default()
    };
    play(&stub.address, script).await?;
    let proxy = passthrough(&stub.address).await?;
    println!("{}; runs of {DELTAS} deltas, {CLIENTS} clients", machine());
    let mut figures = Vec::new();
    for database in stage.databases() {
        let growing = GrowingDatabase::start(&stage, &stub, &proxy, database).await?;
        figures.push(growing.measure(args).await?);
    }
    write(options, &json!({"machine": machine(), "growth": figures}))
}

/// A gateway whose database grows, and the proxy of the same rounds.
struct GrowingDatabase<'a> {
    stage: &'a BenchStage,
    stub: &'a MeasuredProcess,
    database: Database,
    proxy: LoadTarget,
    gateway: Gateway,
    target: LoadTarget,
    /// Runs in the database.
    runs: usize,
}

/// Figures at one size.
struct SizeFigures {
    runs: usize,
    fill_per_second: f64,
    file_bytes: u64,
    proxy: Vec<LoadOutcome>,
    rounds: Vec<LoadOutcome>,
    reads: Vec<ReadLatencies>,
}

impl<'a> GrowingDatabase<'a> {
    async fn start(
        stage: &'a BenchStage,
        stub: &'a MeasuredProcess,
        proxy: &MeasuredProcess,
        database: Database,
    ) -> anyhow::Result<Self> {
        let started = stage.gateway(
            database.name,
            &database,
            &stub.address,
            ConfigAdditions::default(),
        );
        let (gateway, target) = started.await?;
        Ok(Self {
            stage,
            stub,
            proxy: LoadTarget {
                name: "passthrough",
                address: proxy.address.clone(),
                pid: Some(proxy.pid),
                ask: RequestKind::Runner,
            },
            database,
            gateway,
            target,
            runs: 0,
        })
    }

    async fn measure(mut self, args: &GrowthArgs) -> anyhow::Result<Value> {
        let name = self.database.name;
        let mut old = None;
        let mut all: Vec<SizeFigures> = Vec::new();
        for size in &args.sizes {
            let fill_per_second = self.fill(*size).await?;
            // The newest of the old runs: the deletion is complete after it.
            if old.is_none() || *size <= OLD_RUNS {
                let newest = self.reader().newest_run().await?;
                old = Some((self.runs, newest));
            }
            let figures = self.at_size(fill_per_second, args.runs).await?;
            print_size(name, &figures);
            all.push(figures);
        }
        if let [.., before, last] = &all[..] {
            let change = median(&last.ratios()) / median(&before.ratios()) - 1.0;
            println!(
                "{name:<12} from {} to {} runs: {:+.1} % of the ratio",
                before.runs,
                last.runs,
                change * 100.0
            );
        }
        let (old, newest) = old.context("a size")?;
        let deletion = self.delete(old, &newest, args.runs).await?;
        let sizes: Vec<_> = all.iter().map(SizeFigures::to_json).collect();
        Ok(json!({"target": name, "sizes": sizes, "deletion": deletion}))
    }

    /// Makes runs until the database has `size`, and returns their rate.
    async fn fill(&mut self, size: usize) -> anyhow::Result<f64> {
        let (begin, before) = (Instant::now(), self.runs);
        while self.runs < size {
            let missing = size - self.runs;
            self.load(missing.min(FILLING), missing).await?;
        }
        Ok((self.runs - before) as f64 / begin.elapsed().as_secs_f64())
    }

    /// Measures the database as it is.
    async fn at_size(&mut self, fill_per_second: f64, runs: usize) -> anyhow::Result<SizeFigures> {
        let directory = self.stage.directory().join(self.database.name);
        let mut figures = SizeFigures {
            runs: self.runs,
            fill_per_second,
            file_bytes: self.database.size(&directory).await?,
            proxy: Vec::new(),
            rounds: Vec::new(),
            reads: self.reader().measure().await?,
        };
        for _ in 0..self.stage.options.rounds {
            let proxy = complete(&self.proxy, self.next_load(CLIENTS, runs));
            figures.proxy.push(proxy.await?);
            figures.rounds.push(self.load(CLIENTS, runs).await?);
        }
        Ok(figures)
    }

    /// Measures short runs without and with the deletion of the ledger of old runs, up to the run `newest`.
    async fn delete(mut self, old: usize, newest: &str, runs: usize) -> anyhow::Result<Value> {
        let mut without = Vec::new();
        for _ in 0..self.stage.options.rounds {
            without.push(self.load(CLIENTS, runs).await?);
        }
        self.gateway.served.kill().await?;
        let name = self.database.name;
        let started = self
            .stage
            .gateway(name, &self.database, &self.stub.address, RETENTION);
        let begin = Instant::now();
        (self.gateway, self.target) = started.await?;
        let mut with = Vec::new();
        loop {
            with.push(self.load(CLIENTS, runs).await?);
            if self.reader().is_deleted(newest).await? {
                break;
            }
            ensure!(
                begin.elapsed() < MAX_DELETION,
                "the ledgers of {old} runs are not deleted after {MAX_DELETION:?}"
            );
        }
        let elapsed = begin.elapsed().as_secs_f64();
        let [without, with] = [&without, &with].map(|rounds| median(&run_rates(rounds)));
        let change = with / without - 1.0;
        let verdict = if change >= -MAX_SLOWDOWN {
            "within"
        } else {
            "NOT within"
        };
        println!(
            "{name:<12} {with:.0} runs/s while the ledgers of {old} old runs are deleted, for {elapsed:.0} s, and \
             {without:.0} before: {:+.1} %, {verdict} the target of -{:.0} %",
            change * 100.0,
            MAX_SLOWDOWN * 100.0
        );
        Ok(json!({
            "old_runs": old, "seconds": elapsed, "runs_per_second": with,
            "runs_per_second_before": without, "change": change,
        }))
    }

    /// Runs of the gateway, in new conversations.
    async fn load(&mut self, clients: usize, runs: usize) -> anyhow::Result<LoadOutcome> {
        let load = self.next_load(clients, runs);
        let outcome = complete(&self.target, load).await?;
        self.runs += load.clients * load.runs;
        Ok(outcome)
    }

    fn next_load(&self, clients: usize, runs: usize) -> FixedLoad {
        FixedLoad {
            clients,
            runs: (runs / clients).max(1),
            events: DELTAS as u64 + 1,
            // There are fewer conversations than runs, so these are new.
            first_conversation: self.runs,
        }
    }

    fn reader(&self) -> RunReader<'_> {
        RunReader::new(&self.target.address, &self.gateway.key)
    }
}

/// Microseconds of CPU a run, of each round.
fn cpu(rounds: &[LoadOutcome]) -> Vec<f64> {
    let per_run = |one: &LoadOutcome| one.cpu * 1e6 / one.runs.max(1) as f64;
    rounds.iter().map(per_run).collect()
}

impl SizeFigures {
    /// Of the rates, to the proxy.
    fn ratios(&self) -> Vec<f64> {
        ratios(&run_rates(&self.rounds), &run_rates(&self.proxy))
    }

    fn to_json(&self) -> Value {
        let reads = self.reads.iter().map(ReadLatencies::to_json);
        json!({
            "runs": self.runs, "fill_per_second": self.fill_per_second, "file_bytes": self.file_bytes,
            "runs_per_second": run_rates(&self.rounds), "ratios": self.ratios(),
            "cpu_us_per_run": cpu(&self.rounds),
            "cpu_ratio": median(&ratios(&cpu(&self.rounds), &cpu(&self.proxy))),
            "run_p50_ms": run_ms(&self.rounds, 50.0), "run_p99_ms": run_ms(&self.rounds, 99.0),
            "reads": reads.collect::<Vec<_>>(),
        })
    }
}

fn print_size(name: &str, figures: &SizeFigures) {
    println!(
        "{name:<12} {:>8} runs: {:>6.0} runs/s, ratio {:.2}; CPU {:.0} µs a run, ratio {:.1}; p50 {:.1} ms, \
         p99 {:.1} ms; file {:.1} KiB a run; filled at {:.0} runs/s",
        figures.runs,
        median(&run_rates(&figures.rounds)),
        median(&figures.ratios()),
        median(&cpu(&figures.rounds)),
        median(&ratios(&cpu(&figures.rounds), &cpu(&figures.proxy))),
        run_ms(&figures.rounds, 50.0),
        run_ms(&figures.rounds, 99.0),
        figures.file_bytes as f64 / 1024.0 / figures.runs as f64,
        figures.fill_per_second,
    );
    for read in &figures.reads {
        read.print();
    }
}
