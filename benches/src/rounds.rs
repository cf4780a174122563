//! Measures all targets in turn in each round, so that a disturbance affects all of them.

use anyhow::ensure;
use serde_json::json;

use crate::Options;
use crate::figures::{self, ScenarioRow};
use crate::held;
use crate::load::{LoadOutcome, LoadTarget, RequestKind, drive};
use crate::process::machine;
use crate::stage::{BenchStage, ConfigAdditions, passthrough, play, stub_counts};
use crate::stub::StubScript;

/// A workload and its number of concurrent clients.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) deltas: usize,
    pub(crate) clients: usize,
}

const SCENARIOS: [Scenario; 4] = [
    Scenario {
        name: "short-1",
        deltas: 10,
        clients: 1,
    },
    Scenario {
        name: "short-32",
        deltas: 10,
        clients: 32,
    },
    Scenario {
        name: "short-256",
        deltas: 10,
        clients: 256,
    },
    Scenario {
        name: "long-16",
        deltas: 2000,
        clients: 16,
    },
];

pub(crate) async fn run(options: &Options) -> anyhow::Result<()> {
    let wanted = |scenario: &&Scenario| {
        let names = &options.only;
        names.is_empty()
            || names
                .iter()
                .any(|name| scenario.name.starts_with(name.as_str()))
    };
    let scenarios: Vec<_> = SCENARIOS.iter().filter(wanted).copied().collect();
    let stage = BenchStage::new(options).await?;
    let durable = stage.durable_write_ms()?;
    println!("{}; a durable write takes {durable:.1} ms", machine());
    let (rows, connections) = measure(&stage, &scenarios).await?;
    figures::print_rows(&rows);
    for (name, connections, runs) in &connections {
        println!("{name:<12} opened {connections} connections to the runner for {runs} runs");
    }
    let holds = options.only.is_empty() || options.only.iter().any(|name| name == "held");
    let held = if holds {
        held::measure(&stage).await?
    } else {
        Vec::new()
    };
    figures::print_held(&held);
    let held: Vec<_> = held.iter().map(held::HeldFigures::to_json).collect();
    let figures = json!({
        "machine": machine(), "durable_write_ms": durable, "rounds": options.rounds,
        "seconds": options.seconds, "per_write": options.per_write,
        "scenarios": rows.iter().map(ScenarioRow::to_json).collect::<Vec<_>>(), "held": held,
    });
    figures::write(options, &figures)?;
    let failures: u64 = rows
        .iter()
        .flat_map(|row| &row.rounds)
        .map(|one| one.failures)
        .sum();
    ensure!(
        failures == 0,
        "{failures} runs failed: these figures count for nothing"
    );
    Ok(())
}

type Connections = Vec<(&'static str, u64, u64)>;

async fn measure(
    stage: &BenchStage,
    scenarios: &[Scenario],
) -> anyhow::Result<(Vec<ScenarioRow>, Connections)> {
    let options = &stage.options;
    let stub = stage.stub().await?;
    let proxy = passthrough(&stub.address).await?;
    let mut targets = vec![
        LoadTarget {
            name: "direct",
            address: stub.address.clone(),
            pid: None,
            ask: RequestKind::Runner,
        },
        LoadTarget {
            name: "passthrough",
            address: proxy.address.clone(),
            pid: Some(proxy.pid),
            ask: RequestKind::Runner,
        },
    ];
    let mut gateways = Vec::new();
    for database in stage.databases() {
        let gateway = stage.gateway(
            database.name,
            &database,
            &stub.address,
            ConfigAdditions::default(),
        );
        let (gateway, target) = gateway.await?;
        gateways.push(gateway);
        targets.push(target);
    }
    let mut connections: Connections = targets.iter().map(|one| (one.name, 0, 0)).collect();
    let mut rows: Vec<_> = scenarios
        .iter()
        .flat_map(|scenario| {
            targets
                .iter()
                .map(|target| ScenarioRow::new(*scenario, target.name))
        })
        .collect();
    for _ in 0..options.rounds {
        for (index, scenario) in scenarios.iter().enumerate() {
            let script = StubScript {
                deltas: scenario.deltas,
                per_write: options.per_write,
                ..StubScript::default()
            };
            play(&stub.address, script).await?;
            for (number, target) in targets.iter().enumerate() {
                let before = stub_counts(&stub.address).await?;
                let outcome = segment(target, stub.pid, scenario, options.seconds).await?;
                let after = stub_counts(&stub.address).await?;
                // Exclude the connection of the statistics request itself.
                connections[number].1 += after.0 - before.0 - 1;
                connections[number].2 += after.1 - before.1;
                rows[index * targets.len() + number].rounds.push(outcome);
            }
        }
    }
    Ok((rows, connections))
}

async fn segment(
    target: &LoadTarget,
    stub: u32,
    scenario: &Scenario,
    seconds: f64,
) -> anyhow::Result<LoadOutcome> {
    let events = scenario.deltas as u64 + 1;
    let outcome = drive(target, stub, scenario.clients, events, seconds).await?;
    for complaint in &outcome.errors {
        println!("FAILED in {}: {complaint}", scenario.name);
    }
    Ok(outcome)
}
