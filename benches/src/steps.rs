//! Durable steps of a run, with Restate in the same rounds: ten results whose acknowledgement the runner awaits, and
//! ten that it does not await.

mod restate;

use serde_json::json;

use crate::Options;
use crate::cost::{CostRow, CostTarget, print_costs};
use crate::disk::DiskWriters;
use crate::figures::write;
use crate::load::{FixedLoad, LoadTarget, RequestKind};
use crate::process::machine;
use crate::stage::{BenchStage, ConfigAdditions, play};
use crate::stub::StubScript;
use restate::RestatePeer;

/// Steps of a run. The gateway's runs have one more result, which ends them.
const STEPS: usize = 10;
const CLIENTS: [usize; 2] = [1, 32];
/// Handlers of Restate's service; true: the gateway's run is async and waits for each step.
const SCENARIOS: [(&str, bool); 2] = [("awaited", true), ("unawaited", false)];

/// Measures `runs` runs of each target in each round.
pub(crate) async fn run(options: &Options, runs: usize) -> anyhow::Result<()> {
    let stage = BenchStage::new(options).await?;
    let stub = stage.stub().await?;
    let peer = RestatePeer::start(&stage).await?;
    let mut gateways = Vec::new();
    let mut targets = Vec::new();
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
    let mut rows = Vec::new();
    let mut load = FixedLoad {
        clients: 0,
        runs: 0,
        events: STEPS as u64 + 1,
        first_conversation: 0,
    };
    for (handler, is_async) in SCENARIOS {
        let script = StubScript {
            deltas: STEPS,
            per_write: 1,
            is_async,
            ..StubScript::default()
        };
        play(&stub.address, script).await?;
        let restate = CostTarget {
            target: LoadTarget {
                name: "restate",
                address: peer.ingress.clone(),
                pid: Some(peer.pid),
                ask: RequestKind::Restate { handler },
            },
            writers: Some(DiskWriters {
                gateway: peer.pid,
                server: None,
            }),
        };
        let targets: Vec<_> = [&restate].into_iter().chain(&targets).collect();
        for clients in CLIENTS {
            load.clients = clients;
            load.runs = (runs / clients).max(1);
            let begin = rows.len();
            rows.extend(
                targets
                    .iter()
                    .map(|target| CostRow::new(handler, target, clients)),
            );
            for round in 0..=options.rounds {
                for (row, target) in rows[begin..].iter_mut().zip(&targets) {
                    if round < options.rounds {
                        row.add(target, load).await?;
                    } else {
                        row.trace(&stage, target, load).await?;
                    }
                    load.first_conversation += clients * load.runs;
                }
            }
        }
    }
    println!("{}", machine());
    print_costs(&rows, "restate");
    let rows: Vec<_> = rows.iter().map(CostRow::to_json).collect();
    write(options, &json!({"machine": machine(), "steps": rows}))
}
