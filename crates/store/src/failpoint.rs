//! Failpoints: named steps at which tests inject faults. Only `cargo test` builds them in; without the feature
//! `failpoints` of the crate `fail`, [`pass`] does nothing.
//!
//! `FAILPOINTS='ingest.after_commit=1*return(abort);relay.before_commit=return(delay)'` sets them at start:
//!
//! - `return(abort)` ends the process as SIGKILL would
//! - `return(panic)` panics
//! - `return(error)` fails like a lost database
//! - `return(delay)` waits 2 s
//! - `return(block)` blocks its thread for 4 s
//!
//! Counts and probabilities use the syntax of the crate `fail`.

use std::time::Duration;

use crate::error::StoreError;

/// All failpoints. The crash tests cover each.
pub const NAMES: [&str; 33] = [
    // Event ingest.
    "ingest.before_commit",
    "ingest.after_commit",
    // Dispatch: around the intent row of the POST, and after the runner's reply.
    "dispatch.before_run",
    "post.before_intent",
    "post.after_intent",
    "post.after_send",
    // The run's task holds the runner's stream.
    "run.task",
    // Results are stored, then published.
    "relay.before_commit",
    "relay.after_commit",
    "project.state",
    // The run ends in one transaction, then the end is published.
    "project.transcript",
    "succession.before_next",
    "terminal.before_commit",
    "terminal.after_commit",
    "succession.before_dispatch",
    // Requests of clients and runners during a run.
    "cancel.before_commit",
    "cancel.after_commit",
    "steering.before_commit",
    "steering.after_commit",
    // A tool call: around the row of its ticket, and around its result.
    "tool_call.before_ticket",
    "tool_call.after_ticket",
    "tool_call.before_outcome",
    "tool_call.after_outcome",
    // Leases.
    "lease.before_renew",
    "orphan.after_takeover",
    "restart.after_event",
    // A due time becomes an occurrence, which is claimed; its event is stored, and the result recorded.
    "schedule.before_advance",
    "schedule.after_advance",
    "schedule.after_claim",
    "schedule.before_record",
    "schedule.after_record",
    // Any commit of the writer.
    "writer.before_commit",
    "writer.after_commit",
];

/// Blocking time of `return(block)`.
const BLOCK: Duration = Duration::from_secs(4);

/// Applies the variable `FAILPOINTS`, once, in a test build. Other builds ignore it.
pub fn arm() {
    if !fail::has_failpoints() {
        return;
    }
    // Never torn down: it holds for the life of the process.
    std::mem::forget(fail::FailScenario::setup());
    let armed = fail::list();
    if !armed.is_empty() {
        tracing::warn!("test build with active failpoints: {armed:?}");
    }
}

/// Runs the action set for this failpoint, if any.
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
        // Blocks the thread, as non-yielding work does.
        "block" => std::thread::sleep(BLOCK),
        "delay" => tokio::time::sleep(Duration::from_secs(2)).await,
        _ => return Err(StoreError::Unreachable),
    }
    Ok(())
}
