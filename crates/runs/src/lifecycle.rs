//! Lifecycle of the process: its tasks, and the two steps of a stop.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Tasks of runs, and the tokens that stop them.
pub(super) struct Lifecycle {
    pub(super) tasks: TaskTracker,
    /// Cancelled when the process takes no new run.
    pub(super) stopping: CancellationToken,
    /// Cancelled when live runs must end now.
    pub(super) closing: CancellationToken,
}

impl Lifecycle {
    pub(super) fn new() -> Self {
        Self {
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            closing: CancellationToken::new(),
        }
    }

    /// Takes no new run from here on, and waits up to `grace` for the live ones.
    pub(super) async fn finish(&self, grace: Duration) {
        self.stopping.cancel();
        // A tracker that is open never reports that its tasks have ended.
        self.tasks.close();
        if tokio::time::timeout(grace, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                grace_ms = grace.as_millis(),
                "ending the runs that are live after the grace period"
            );
        }
    }

    /// Ends live runs as `host.shutdown`. Returns when all ends are written.
    pub(super) async fn end(&self) {
        self.closing.cancel();
        self.tasks.wait().await;
    }
}
