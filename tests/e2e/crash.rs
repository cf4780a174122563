//! The gateway dies: by SIGKILL at any moment, and at each moment that has a name, under load of all kinds.
//! It is started again on the same database, and what it told anyone must be true (I1–I13).
//!
//! A thousand kills on each database, some twenty minutes each:
//! ```sh
//! RUNNEL_TEST_KILL_CYCLES=1000 RUNNEL_TEST_POSTGRES_URL=postgres://postgres@127.0.0.1/postgres \
//!     cargo test -p gateway --test e2e -- --nocapture killed_at_any_moment
//! ```
//! `RUNNEL_TEST_SEED` is printed, and gives the same moments again.

#[path = "crash/abandoned.rs"]
mod abandoned;
#[path = "crash/beginning.rs"]
mod beginning;
#[path = "crash/checks.rs"]
mod checks;
#[path = "crash/failpoints.rs"]
mod failpoints;
#[path = "crash/fencing.rs"]
mod fencing;
#[path = "crash/journal.rs"]
mod journal;
#[path = "crash/kills.rs"]
mod kills;
#[path = "crash/later.rs"]
mod later;
#[path = "crash/load.rs"]
mod load;

use serde_json::json;

use crate::support::gateway::Config;
use crate::support::runner::{RUNNER_ID, StubRunner, manifest};
use crate::support::{Engine, OwnStage};

/// A gateway with an agent for each way to meet a busy conversation, before a runner that pulls
/// follow-ups and can be interrupted.
async fn stage(engine: Engine, lease: &str) -> Option<OwnStage> {
    let mut manifest = manifest(RUNNER_ID);
    manifest["capabilities"]["steering"] = json!(true);
    manifest["capabilities"]["interrupt"] = json!(true);
    let runner = StubRunner::start_as(manifest).await;
    runner.answer_all(load::script);
    OwnStage::of(engine, runner, |config| configure(config, lease)).await
}

fn configure(config: &mut Config, lease: &str) {
    config.runs = format!("lease_seconds = {lease}\ncancel_grace_seconds = 0.1");
    config.rest = load::BUSY.map(agent).concat();
}

/// For the events of the bot that is named like the policy.
fn agent(policy: &str) -> String {
    format!(
        "[[agents]]\nname = \"{policy}\"\nevent_types = [\"message.received\"]\n\
         scope = {{ kind = \"bot\", bot_id = \"{policy}\" }}\nconcurrency = \"{policy}\"\n\
         runner_id = \"{RUNNER_ID}\"\nconfig = {{ timeout = 50.0 }}\nretry = {{ max = 0 }}\n\
         resource_policy = {{ history = [\"page\"] }}\n\
         state_policy = {{ enabled = true, scopes = [\"conversation\", \"actor\"] }}\n"
    )
}
