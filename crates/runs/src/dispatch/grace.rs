//! The time that a cancelled run has to end by itself, and what a runner does that knows of a cancel.

use std::time::Duration;

use domain::run::Run;
use tokio::time::Instant;

use crate::Inner;
use crate::live::LiveRun;
use crate::prepare::Prepared;

/// Resolves when a cancelled run has had its time to end by itself, counted from the first call, which has its
/// runner told; or when the gateway closes.
pub(crate) async fn grace(inner: &Inner, live: &LiveRun, prepared: &Prepared, run: &Run) {
    let mut is_first = false;
    let until = live.grace_until(|| {
        is_first = true;
        Instant::now() + inner.limits.cancel_grace
    });
    if is_first {
        tell_runner(inner, prepared, run);
    }
    tokio::select! {
        () = tokio::time::sleep_until(until) => {}
        () = inner.closing.cancelled() => {}
    }
}

/// Sends the cancel notice to a runner that can be interrupted. Best effort, beside the run: its grace may be short.
fn tell_runner(inner: &Inner, prepared: &Prepared, run: &Run) {
    const PATIENCE: Duration = Duration::from_secs(5);
    let endpoint = prepared.endpoint.clone();
    let Some(endpoint) = endpoint.filter(|_| prepared.interruptible) else {
        return;
    };
    let (client, closing) = (inner.client.clone(), inner.closing.clone());
    let (id, attempt) = (run.id, run.attempt.max(1));
    inner.tasks.spawn(async move {
        let told = tokio::select! {
            told = client.cancel_run(&endpoint, id, attempt, PATIENCE) => told,
            () = closing.cancelled() => return,
        };
        if let Err(error) = told {
            let error = &error as &dyn std::error::Error;
            tracing::info!(run.id = %id, error, "runner was not told of the cancel of run {id}");
        }
    });
}

/// A runner may be told of a cancel by another replica before we are.
pub(crate) async fn was_cancelled_elsewhere(inner: &Inner, live: &LiveRun, run: &Run) -> bool {
    let found = tokio::select! {
        found = inner.store.runs().find_run(&run.workspace, run.id) => found,
        () = live.lost.cancelled() => return false,
        () = inner.closing.cancelled() => return false,
    };
    found.is_ok_and(|found| found.is_some_and(|run| run.cancel_requested_at.is_some()))
}
