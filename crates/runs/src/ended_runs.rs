//! Ends of runs, for observers in this process.

use protocol::id::{RunId, WorkspaceId};
use tokio::sync::broadcast;

/// Queued ends of an observer. If the queue is full, the oldest ends are lost, and the observer's next read reports
/// their number.
const QUEUE: usize = 256;

/// Publishes the runs that this process has ended, after their commit.
pub(crate) struct EndedRuns(broadcast::Sender<(WorkspaceId, RunId)>);

impl Default for EndedRuns {
    fn default() -> Self {
        Self(broadcast::Sender::new(QUEUE))
    }
}

impl EndedRuns {
    pub(crate) fn publish(&self, workspace: &WorkspaceId, id: RunId) {
        // Fails without observers only.
        let _ = self.0.send((workspace.clone(), id));
    }

    pub(crate) fn subscribe(&self) -> broadcast::Receiver<(WorkspaceId, RunId)> {
        self.0.subscribe()
    }
}
