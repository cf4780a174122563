//! Crashes of the gateway under mixed load: SIGKILL at random moments, and an abort at each failpoint. After a
//! restart on the same database, everything that it has acknowledged must hold (I1–I13). So also after power cuts, which
//! drop what the gateway did not sync.
//!
//! A thousand kills on each database take about twenty minutes each:
//! ```sh
//! RUNNEL_TEST_KILL_CYCLES=1000 RUNNEL_TEST_POSTGRES_URL=postgres://postgres@127.0.0.1/postgres \
//!     cargo test -p e2e --test e2e -- --nocapture killed_at_any_moment resumable_streams::
//! ```
//! The test prints `RUNNEL_TEST_SEED`, which reproduces the moments.

#[path = "crash/checks.rs"]
mod checks;
#[path = "crash/client_disconnects.rs"]
mod client_disconnects;
#[path = "crash/clock_steps.rs"]
mod clock_steps;
#[path = "crash/deferred_results.rs"]
mod deferred_results;
#[path = "crash/dispatch_commit.rs"]
mod dispatch_commit;
#[path = "crash/failpoints.rs"]
mod failpoints;
#[path = "crash/fencing.rs"]
mod fencing;
#[path = "crash/journal.rs"]
mod journal;
#[path = "crash/kills.rs"]
mod kills;
#[path = "crash/load.rs"]
mod load;
#[path = "crash/power_cuts.rs"]
mod power_cuts;
#[path = "crash/resumable_streams.rs"]
mod resumable_streams;

use serde_json::json;

use crate::support::gateway::Config;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::{Engine, OwnStage};

/// A gateway with one agent for each concurrency policy, and a runner that pulls steering messages and can be
/// interrupted.
async fn stage(engine: Engine, lease: &str) -> Option<OwnStage> {
    stage_with(engine, |config| configure(config, lease)).await
}

async fn stage_with(engine: Engine, configure: impl FnOnce(&mut Config)) -> Option<OwnStage> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["steering"] = json!(true);
    manifest["capabilities"]["interrupt"] = json!(true);
    let runner = StubRunner::start_as(manifest).await;
    runner.answer_all(load::script);
    OwnStage::of(engine, runner, configure).await
}

fn configure(config: &mut Config, lease: &str) {
    config.runs = format!("lease_seconds = {lease}\ncancel_grace_seconds = 0.1");
    config.rest = load::BUSY.map(agent).concat();
}

/// An agent for events of the bot with the name of the policy.
fn agent(policy: &str) -> String {
    format!(
        "[[agents]]\nname = \"{policy}\"\nevent_types = [\"message.received\"]\n\
         scope = {{ kind = \"bot\", bot_id = \"{policy}\" }}\nconcurrency = \"{policy}\"\n\
         runner_id = \"{RUNNER_ID}\"\nconfig = {{ timeout = 50.0 }}\nretry = {{ max = 0 }}\n\
         resource_policy = {{ history = [\"page\"] }}\n\
         state_policy = {{ enabled = true, scopes = [\"conversation\", \"actor\"] }}\n"
    )
}
