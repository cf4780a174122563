//! Medians, ratios, and their output.

use serde_json::{Value, json};

use crate::Options;
use crate::held::HeldFigures;
use crate::load::LoadOutcome;
use crate::rounds::Scenario;

/// Baseline of all comparisons.
const BASELINE: &str = "passthrough";

/// One target in one scenario, over all rounds.
pub(crate) struct ScenarioRow {
    pub(crate) scenario: Scenario,
    pub(crate) target: &'static str,
    pub(crate) rounds: Vec<LoadOutcome>,
}

impl ScenarioRow {
    pub(crate) fn new(scenario: Scenario, target: &'static str) -> Self {
        Self {
            scenario,
            target,
            rounds: Vec::new(),
        }
    }

    fn is_long(&self) -> bool {
        self.scenario.name.starts_with("long")
    }

    /// Runs per second; for long scenarios, events per second.
    fn rates(&self) -> Vec<f64> {
        let rate = |one: &LoadOutcome| {
            let count = if self.is_long() { one.events } else { one.runs };
            count as f64 / one.seconds
        };
        self.rounds.iter().map(rate).collect()
    }

    /// Microseconds of the target's CPU time per event.
    fn cpu(&self) -> Vec<f64> {
        let per_event = |one: &LoadOutcome| one.cpu * 1e6 / (one.events.max(1) as f64);
        self.rounds.iter().map(per_event).collect()
    }

    fn first_event(&self, at: f64) -> f64 {
        let all: Vec<_> = self
            .rounds
            .iter()
            .flat_map(|one| one.first_event_ms.clone())
            .collect();
        percentile(&all, at)
    }

    /// CPU use of the load generator or the stub, in cores.
    fn share(&self, of: impl Fn(&LoadOutcome) -> f64) -> f64 {
        let part: f64 = self.rounds.iter().map(of).sum();
        let seconds: f64 = self.rounds.iter().map(|one| one.seconds).sum();
        part / seconds
    }

    pub(crate) fn to_json(&self) -> Value {
        let rates = self.rates();
        json!({
            "scenario": self.scenario.name, "deltas": self.scenario.deltas,
            "clients": self.scenario.clients, "target": self.target,
            "unit": if self.is_long() { "events/s" } else { "runs/s" },
            "median": median(&rates), "rates": rates,
            "cpu_us_per_event": median(&self.cpu()),
            "first_event_p50_ms": self.first_event(50.0),
            "first_event_p99_ms": self.first_event(99.0),
            "failures": self.rounds.iter().map(|one| one.failures).sum::<u64>(),
            "cores_of_target": self.share(|one| one.cpu),
            "cores_of_load": self.share(|one| one.cpu_load),
            "cores_of_stub": self.share(|one| one.cpu_stub),
        })
    }
}

pub(crate) fn print_rows(rows: &[ScenarioRow]) {
    println!(
        "\n{:<10} {:<12} {:>10} {:>7} {:>15} {:>9} {:>7} {:>9} {:>9} {:>6}  cores: target stub load",
        "scenario",
        "target",
        "per second",
        "ratio",
        "min–max",
        "CPU µs/ev",
        "ratio",
        "first p50",
        "first p99",
        "failed"
    );
    for row in rows {
        let is_same = |other: &&ScenarioRow| {
            other.scenario.name == row.scenario.name && other.target == BASELINE
        };
        let Some(yardstick) = rows.iter().find(is_same) else {
            continue;
        };
        let rates = row.rates();
        let ratios = ratios(&rates, &yardstick.rates());
        let cpu = self::ratios(&row.cpu(), &yardstick.cpu());
        let failed: u64 = row.rounds.iter().map(|one| one.failures).sum();
        println!(
            "{:<10} {:<12} {:>10.0} {:>7.2} {:>15} {:>9.1} {:>7.2} {:>9.2} {:>9.2} {:>6}  {:>13.2} {:.2} {:.2}",
            row.scenario.name,
            row.target,
            median(&rates),
            median(&ratios),
            format!(
                "{:.2}–{:.2}",
                percentile(&ratios, 0.0),
                percentile(&ratios, 100.0)
            ),
            median(&row.cpu()),
            median(&cpu),
            row.first_event(50.0),
            row.first_event(99.0),
            failed,
            row.share(|one| one.cpu),
            row.share(|one| one.cpu_stub),
            row.share(|one| one.cpu_load),
        );
    }
    println!(
        "short: runs of 10 deltas, per second. long: events of runs of 2,000 deltas, per second."
    );
    println!(
        "ratio: to the passthrough in the same round, the median of all rounds. first: ms to the first event."
    );
}

pub(crate) fn print_held(held: &[HeldFigures]) {
    let Some(yardstick) = held.iter().find(|one| one.memory.name == BASELINE) else {
        return;
    };
    let baseline = yardstick.memory.per_stream;
    println!(
        "\n{} held streams: memory of each, and the time of an event to all of them",
        yardstick.memory.streams
    );
    for one in held {
        let memory = &one.memory;
        let (kib, ratio) = (memory.per_stream / 1024.0, memory.per_stream / baseline);
        let idle = memory.idle as f64 / (1024.0 * 1024.0);
        let [p50, p99] = [50.0, 99.0].map(|at| percentile(&one.delivery_ms, at));
        print!(
            "{:<12} {:<8} {kib:>7.1} KiB {ratio:>6.2}  ({idle:.0} MiB without them)  p50 {p50:>7.1} ms  p99 {p99:>7.1} ms",
            memory.name,
            one.shape.name()
        );
        match one.revocation_ms {
            Some(revoked) => println!("  last byte {revoked:.0} ms after the revocation"),
            None => println!(),
        }
    }
}

/// Ratios of each round to the baseline of the same round.
pub(crate) fn ratios(all: &[f64], yardstick: &[f64]) -> Vec<f64> {
    all.iter()
        .zip(yardstick)
        .map(|(one, other)| one / other)
        .collect()
}

pub(crate) fn median(all: &[f64]) -> f64 {
    percentile(all, 50.0)
}

/// The percentile; 0.0 for an empty slice.
pub(crate) fn percentile(all: &[f64], at: f64) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else {
        return 0.0;
    };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index in a list"
    )]
    let index = (at / 100.0 * last as f64).round() as usize;
    sorted[index.min(last)]
}

/// Writes the figures to the file of `--json`, if given.
pub(crate) fn write(options: &Options, figures: &Value) -> anyhow::Result<()> {
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_string_pretty(figures)?)?;
    }
    Ok(())
}
