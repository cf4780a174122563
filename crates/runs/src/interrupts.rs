//! Interruption of a run: cancel, deadline, shutdown, and the grace of a cancelled run.

use std::sync::Arc;
use std::time::Duration;

use domain::run::{Failure, FailureCode, Run};
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::inputs::PreparedDispatch;
use crate::live::LiveRun;

/// Waits for interruptions of runs.
#[derive(Clone)]
pub(super) struct Interrupts {
    pub(super) deps: Arc<RunDeps>,
}

impl Interrupts {
    /// Resolves when the run must end: cancelled, past its deadline, or the gateway is closing.
    pub(super) async fn interrupted(&self, live: &LiveRun, run: &Run) {
        tokio::select! {
            () = live.cancel.cancelled() => {}
            () = self.deps.lifecycle.closing.cancelled() => {}
            () = self.until_deadline(live, run) => {}
        }
    }

    /// Waits for the deadline of the run, which waits for budgets extend.
    async fn until_deadline(&self, live: &LiveRun, run: &Run) {
        let mut deadline_at = run.deadline_at;
        loop {
            tokio::time::sleep(self.deps.time_until(deadline_at)).await;
            // Read only now: few runs reach their deadline.
            match self.deps.waits_of(run.id).await {
                Some(waits) if waits.deadline_at > deadline_at => {
                    deadline_at = waits.deadline_at;
                    live.extend_deadline(deadline_at);
                }
                _ => return,
            }
        }
    }

    /// Failure for the cause that resolved [`Self::interrupted`].
    pub(super) fn interruption(&self, live: &LiveRun) -> Failure {
        // In this order: a cancelled run ends as cancelled, also while the gateway stops.
        if live.cancel.is_cancelled() {
            Failure::cancelled()
        } else if self.deps.lifecycle.closing.is_cancelled() {
            shutdown_failure()
        } else {
            deadline_failure()
        }
    }

    /// Resolves when the grace of a cancelled run is over, or when the gateway closes. The first call starts the grace
    /// and sends the cancel notice to the runner.
    pub(super) async fn grace(&self, live: &LiveRun, prepared: &PreparedDispatch, run: &Run) {
        let mut is_first = false;
        let until = live.grace_until(|| {
            is_first = true;
            Instant::now() + self.deps.limits.cancel_grace
        });
        if is_first {
            self.notify_runner(prepared, run);
        }
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = self.deps.lifecycle.closing.cancelled() => {}
        }
    }

    /// Sends the cancel notice to a runner that can be interrupted, or works on without a connection. Best effort.
    pub(super) fn notify_runner(&self, prepared: &PreparedDispatch, run: &Run) {
        const TIMEOUT: Duration = Duration::from_secs(5);
        let endpoint = prepared.endpoint.clone();
        let listens = prepared.interruptible || prepared.resume_window.is_some();
        let Some(endpoint) = endpoint.filter(|_| listens) else {
            return;
        };
        let (client, closing) = (
            self.deps.client.clone(),
            self.deps.lifecycle.closing.clone(),
        );
        let (id, attempt) = (run.id, run.attempt.max(1));
        // A task of its own: the grace may be shorter than the request.
        self.deps.lifecycle.tasks.spawn(async move {
            let notified = tokio::select! {
                notified = client.cancel_run(&endpoint, id, attempt, TIMEOUT) => notified,
                () = closing.cancelled() => return,
            };
            if let Err(error) = notified {
                let error = &error as &dyn std::error::Error;
                tracing::info!(run.id = %id, error, "cannot tell the runner that run {id} is cancelled");
            }
        });
    }

    /// True when the run's row has a cancel request. Its runner may have received it before this replica.
    pub(super) async fn was_cancelled_elsewhere(&self, live: &LiveRun, run: &Run) -> bool {
        let found = tokio::select! {
            found = self.deps.find_run(&run.workspace, run.id) => found,
            // During an outage the query may hang, and the run must still stop.
            () = live.lost.cancelled() => return false,
            () = self.deps.lifecycle.closing.cancelled() => return false,
        };
        found.is_ok_and(|found| found.is_some_and(|run| run.cancel_requested_at.is_some()))
    }
}

/// Failure of a run that is live when the gateway closes.
pub(crate) fn shutdown_failure() -> Failure {
    Failure::new(
        FailureCode::HostShutdown,
        "the gateway was stopped; post the event again",
    )
}

/// Failure of a run after its deadline.
pub(crate) fn deadline_failure() -> Failure {
    Failure::new(FailureCode::DeadlineExceeded, "the run passed its deadline")
}
