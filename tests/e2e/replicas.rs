//! Several gateways on one database: a replica serves the others' runs, also when another one dies, hangs or has
//! a wrong clock.

#[path = "replicas/bus.rs"]
mod bus;
#[path = "replicas/clocks.rs"]
mod clocks;
#[path = "replicas/feed.rs"]
mod feed;
#[path = "replicas/locks.rs"]
mod locks;
#[path = "replicas/nats.rs"]
mod nats;
#[path = "replicas/once.rs"]
mod once;
#[path = "replicas/orphans.rs"]
mod orphans;
#[path = "replicas/revoking.rs"]
mod revoking;
#[path = "replicas/rolling.rs"]
mod rolling;
#[path = "replicas/starting.rs"]
mod starting;
#[path = "replicas/upgrade.rs"]
mod upgrade;

use crate::support::database::listening;
use crate::support::gateway::Config;
use crate::support::nats::nats_server;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::script::{Gate, sse_around};
use crate::support::{OwnStage, Postgres, Stage, until};

/// Transport of notifications in a test.
#[derive(Clone, Copy, Debug)]
enum TestBus {
    Postgres,
    Nats,
    Silent,
}

impl TestBus {
    /// The configuration section. With notifications, the poll interval is a minute, so anything faster comes
    /// from a notification. `None`: not available.
    fn section(self) -> Option<String> {
        Some(match self {
            Self::Postgres => "kind = \"postgres\"\npoll_seconds = 60.0".to_owned(),
            Self::Nats => {
                let server = nats_server()?;
                format!("kind = \"nats\"\nurl = \"{server}\"\npoll_seconds = 60.0")
            }
            Self::Silent => "kind = \"none\"\npoll_seconds = 0.2".to_owned(),
        })
    }

    /// Returns once notifications are delivered.
    async fn ready(self, database: &str, replicas: usize, log: impl Fn() -> String) {
        match self {
            Self::Nats => {
                until("NATS", async || {
                    log().contains("notification bus connected to NATS")
                })
                .await;
            }
            Self::Postgres => listening(database, replicas).await,
            Self::Silent => {}
        }
    }
}

/// A gateway on this bus and a runner that pulls follow-ups.
async fn stage_on(bus: TestBus, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let section = bus.section()?;
    let mut steerable = manifest(RUNNER_ID);
    steerable["capabilities"]["steering"] = true.into();
    let runner = StubRunner::start_as(steerable).await;
    let stage = OwnStage::of(Postgres, runner, |config| {
        section.clone_into(&mut config.bus);
        configure(config);
    });
    let stage = stage.await?;
    bus.ready(&stage.gateway.database_url(), 1, || stage.gateway.log())
        .await;
    Some(stage)
}

/// A script that sends a delta, waits for the gate, and completes.
fn gated(stage: &Stage, event_id: &str) -> Gate {
    let gate = Gate::new();
    let hold = gate.clone();
    stage.runner.answer(event_id, move |run| {
        let end = [run.delta(2, "two"), run.completed(3)].concat();
        sse_around(&hold, run.delta(1, "one"), end)
    });
    gate
}
