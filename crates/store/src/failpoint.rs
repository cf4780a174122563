//! Named moments at which tests break the process. Only `cargo test` builds a binary that has them:
//! without the feature `failpoints` of the crate `fail`, [`pass`] is nothing.
//!
//! `FAILPOINTS='ingest.after_commit=1*return(abort);relay.before_commit=return(delay)'` breaks such a
//! binary at its start: `return(abort)` ends the process at that moment as SIGKILL would, `return(panic)`
//! panics, `return(error)` fails as a database does that went away, `return(delay)` waits two seconds, `return(block)`
//! keeps its thread for four.
//! Counts and chances are those of the crate `fail`.

use std::time::Duration;

use crate::error::StoreError;

/// Every moment. The tests of crashes go through all of them.
pub const NAMES: [&str; 23] = [
    // An event is taken.
    "ingest.before_commit",
    "ingest.after_commit",
    // Its run is dispatched: around the intent to POST, and with the runner's answer at hand.
    "dispatch.before_run",
    "post.before_intent",
    "post.after_intent",
    "post.after_send",
    // Its task has the runner's stream.
    "run.task",
    // Results are stored, then shown.
    "relay.before_commit",
    "relay.after_commit",
    "project.state",
    // The run ends: all of it in one transaction, then shown.
    "project.transcript",
    "succession.before_next",
    "terminal.before_commit",
    "terminal.after_commit",
    "succession.before_dispatch",
    // What clients and runners ask for meanwhile.
    "cancel.before_commit",
    "cancel.after_commit",
    "steering.before_commit",
    "steering.after_commit",
    // Leases.
    "lease.before_renew",
    "orphan.after_takeover",
    // Any commit of the writer.
    "writer.before_commit",
    "writer.after_commit",
];

/// How long `return(block)` keeps its thread.
const BLOCK: Duration = Duration::from_secs(4);

/// Sets what the variable `FAILPOINTS` says, once, in a build for tests. Any other build has nothing
/// to set.
pub fn arm() {
    if !fail::has_failpoints() {
        return;
    }
    // Never torn down: it holds for as long as the process does.
    std::mem::forget(fail::FailScenario::setup());
    let armed = fail::list();
    if !armed.is_empty() {
        tracing::warn!("this build is for tests alone, and FAILPOINTS breaks it: {armed:?}");
    }
}

/// Does what is set for this moment, if anything is.
pub async fn pass(name: &'static str) -> Result<(), StoreError> {
    match set_for(name) {
        None => Ok(()),
        Some(action) => take(name, &action).await,
    }
}

fn set_for(name: &'static str) -> Option<String> {
    debug_assert!(NAMES.contains(&name), "{name} is missing among the names");
    fail::fail_point!(name, |action| action);
    None
}

async fn take(name: &'static str, action: &str) -> Result<(), StoreError> {
    tracing::warn!("failpoint {name}: {action}");
    match action {
        "abort" => std::process::abort(),
        "panic" => panic!("failpoint {name}"),
        // Blocks the thread, as work does that never waits.
        "block" => std::thread::sleep(BLOCK),
        "delay" => tokio::time::sleep(Duration::from_secs(2)).await,
        _ => return Err(StoreError::Unreachable),
    }
    Ok(())
}
