//! Cost of a fixed number of runs: time, CPU, bytes and syncs, of several targets in turn.

use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::database::Database;
use crate::disk::DiskWriters;
use crate::figures::{median, percentile};
use crate::load::{FixedLoad, LoadTarget, complete};
use crate::stage::BenchStage;

/// Time after the last run, in which background writes reach the disk.
const SETTLE: Duration = Duration::from_millis(500);

/// A target, and the processes that write for it; `None`: it writes nothing.
pub(crate) struct CostTarget {
    pub(crate) target: LoadTarget,
    pub(crate) writers: Option<DiskWriters>,
}

impl CostTarget {
    /// A gateway on this database.
    pub(crate) async fn gateway(target: LoadTarget, database: &Database) -> anyhow::Result<Self> {
        let gateway = target.pid.context("a process of its own")?;
        let server = database.server().await?;
        if server.is_none() && database.name == "postgres" {
            println!("the PostgreSQL server is not on this machine: its writes are not counted");
        }
        Ok(Self {
            target,
            writers: Some(DiskWriters { gateway, server }),
        })
    }
}

/// Figures of one target under one load, over all rounds.
pub(crate) struct CostRow {
    scenario: &'static str,
    target: &'static str,
    clients: usize,
    /// Of each round: runs per second, microseconds of CPU a run, and bytes written a run.
    rates: Vec<f64>,
    cpu: Vec<f64>,
    bytes: Vec<f64>,
    run_ms: Vec<f64>,
    /// Syncs a run, of the traced runs.
    syncs: Option<f64>,
}

impl CostRow {
    pub(crate) fn new(scenario: &'static str, target: &CostTarget, clients: usize) -> Self {
        Self {
            scenario,
            target: target.target.name,
            clients,
            rates: Vec::new(),
            cpu: Vec::new(),
            bytes: Vec::new(),
            run_ms: Vec::new(),
            syncs: None,
        }
    }

    /// Measures one round.
    pub(crate) async fn add(&mut self, target: &CostTarget, load: FixedLoad) -> anyhow::Result<()> {
        let written = || target.writers.as_ref().map_or(Ok(0), DiskWriters::written);
        let before = written()?;
        let outcome = complete(&target.target, load).await?;
        tokio::time::sleep(SETTLE).await;
        let runs = outcome.runs as f64;
        self.rates.push(runs / outcome.seconds);
        self.cpu.push(outcome.cpu * 1e6 / runs);
        self.bytes.push((written()? - before) as f64 / runs);
        self.run_ms.extend(outcome.run_ms);
        Ok(())
    }

    /// Counts the syncs of further runs, which are slow and count for no other figure.
    pub(crate) async fn trace(
        &mut self,
        stage: &BenchStage,
        target: &CostTarget,
        load: FixedLoad,
    ) -> anyhow::Result<()> {
        if let Some(writers) = &target.writers {
            let work = async {
                complete(&target.target, load).await?;
                tokio::time::sleep(SETTLE).await;
                Ok(())
            };
            let syncs = writers.syncs(stage.directory(), work).await?;
            self.syncs = Some(syncs as f64 / (load.clients * load.runs) as f64);
        }
        Ok(())
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "scenario": self.scenario, "target": self.target, "clients": self.clients,
            "runs_per_second": self.rates, "cpu_us_per_run": self.cpu, "bytes_per_run": self.bytes,
            "syncs_per_run": self.syncs, "run_p50_ms": percentile(&self.run_ms, 50.0),
            "run_p99_ms": percentile(&self.run_ms, 99.0),
        })
    }
}

/// Prints all rows, with ratios to the row of `baseline` under the same load.
pub(crate) fn print_costs(rows: &[CostRow], baseline: &str) {
    println!(
        "\n{:<10} {:>7} {:<12} {:>8} {:>6} {:>11} {:>9} {:>6} {:>8} {:>8} {:>9} {:>9}",
        "scenario",
        "clients",
        "target",
        "runs/s",
        "ratio",
        "min–max",
        "CPU µs",
        "ratio",
        "p50 ms",
        "p99 ms",
        "KiB/run",
        "syncs/run"
    );
    for row in rows {
        let is_baseline = |other: &&CostRow| {
            (other.scenario, other.clients, other.target) == (row.scenario, row.clients, baseline)
        };
        let Some(yardstick) = rows.iter().find(is_baseline) else {
            continue;
        };
        let rates = crate::figures::ratios(&row.rates, &yardstick.rates);
        let cpu = crate::figures::ratios(&row.cpu, &yardstick.cpu);
        let [min, max] = [0.0, 100.0].map(|at| percentile(&rates, at));
        let syncs = row.syncs.map_or("-".to_owned(), |one| format!("{one:.2}"));
        println!(
            "{:<10} {:>7} {:<12} {:>8.0} {:>6.2} {:>11} {:>9.0} {:>6.2} {:>8.2} {:>8.2} {:>9.1} {syncs:>9}",
            row.scenario,
            row.clients,
            row.target,
            median(&row.rates),
            median(&rates),
            format!("{min:.2}–{max:.2}"),
            median(&row.cpu),
            median(&cpu),
            percentile(&row.run_ms, 50.0),
            percentile(&row.run_ms, 99.0),
            median(&row.bytes) / 1024.0,
        );
    }
    println!(
        "ratio: to {baseline} in the same round, the median of all rounds. KiB and syncs: of all processes that write."
    );
}
