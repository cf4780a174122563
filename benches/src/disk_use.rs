//! Bytes and syncs that a short run costs on the disk, and its CPU as a ratio to the proxy.

use serde_json::json;

use crate::Options;
use crate::cost::{CostRow, CostTarget, print_costs};
use crate::figures::write;
use crate::load::{FixedLoad, LoadTarget, RequestKind};
use crate::process::machine;
use crate::stage::{BenchStage, ConfigAdditions, passthrough, play};
use crate::stub::StubScript;

const DELTAS: usize = 10;
const CLIENTS: [usize; 2] = [1, 32];

/// Measures `runs` runs of each target in each round.
pub(crate) async fn run(options: &Options, runs: usize) -> anyhow::Result<()> {
    let stage = BenchStage::new(options).await?;
    let stub = stage.stub().await?;
    let script = StubScript {
        deltas: DELTAS,
        per_write: options.per_write,
        ..StubScript::default()
    };
    play(&stub.address, script).await?;
    let proxy = passthrough(&stub.address).await?;
    let mut targets = vec![CostTarget {
        target: LoadTarget {
            name: "passthrough",
            address: proxy.address.clone(),
            pid: Some(proxy.pid),
            ask: RequestKind::Runner,
        },
        writers: None,
    }];
    let mut gateways = Vec::new();
    for database in stage.databases() {
        let started = stage.gateway(
            database.name,
            &database,
            &stub.address,
            ConfigAdditions::default(),
        );
        let (gateway, target) = started.await?;
        gateways.push(gateway);
        targets.push(CostTarget::gateway(target, &database).await?);
    }
    let mut rows: Vec<_> = CLIENTS
        .iter()
        .flat_map(|clients| {
            let row = |target| CostRow::new("short", target, *clients);
            targets.iter().map(row)
        })
        .collect();
    let mut load = FixedLoad {
        clients: 0,
        runs: 0,
        events: DELTAS as u64 + 1,
        first_conversation: 0,
    };
    for round in 0..=options.rounds {
        for (index, row) in rows.iter_mut().enumerate() {
            let target = &targets[index % targets.len()];
            load.clients = CLIENTS[index / targets.len()];
            load.runs = (runs / load.clients).max(1);
            if round < options.rounds {
                row.add(target, load).await?;
            } else {
                row.trace(&stage, target, load).await?;
            }
            load.first_conversation += load.clients * load.runs;
        }
    }
    println!("{}", machine());
    print_costs(&rows, "passthrough");
    let rows: Vec<_> = rows.iter().map(CostRow::to_json).collect();
    write(options, &json!({"machine": machine(), "disk": rows}))
}
