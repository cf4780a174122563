//! Cancellation of runs.

use std::sync::Arc;

use domain::run::Failure;
use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use store::{CancelCause, CancelOutcome, LeaseFilter, StoreError, failpoint};

use crate::child_cancellation;
use crate::deps::RunDeps;
use crate::executor::RunExecutor;

/// Stores cancel requests, and signals them to the processes that drive the runs.
pub struct Cancellation {
    pub(super) deps: Arc<RunDeps>,
    pub(super) executor: Arc<RunExecutor>,
}

impl Cancellation {
    /// Stores the cancel request, and wakes the run if it lives here.
    pub async fn cancel(
        self: &Arc<Self>,
        workspace: &WorkspaceId,
        id: RunId,
        request: CancelCause,
    ) -> Result<CancelOutcome, StoreError> {
        // A task of its own: the caller may disconnect, but a stored request must be signalled.
        let (this, workspace) = (Arc::clone(self), workspace.clone());
        let cancelling = self
            .deps
            .lifecycle
            .tasks
            .spawn(async move { this.request(&workspace, id, request).await });
        cancelling.await.map_err(|_| StoreError::Closed)?
    }

    async fn request(
        &self,
        workspace: &WorkspaceId,
        id: RunId,
        request: CancelCause,
    ) -> Result<CancelOutcome, StoreError> {
        let now = self.deps.clock.now_ms();
        let outcome = self
            .deps
            .store
            .runs()
            .request_cancel(workspace, id, request, now)
            .await?;
        failpoint::pass("cancel.after_commit").await?;
        let CancelOutcome::Requested(run) = &outcome else {
            return Ok(outcome);
        };
        if run.status == RunStatus::Queued {
            let failure = Failure::cancelled();
            // No process drives a queued run, so it ends here.
            self.executor
                .end_orphan(id, workspace, LeaseFilter::None, failure)
                .await;
            // If this read fails, the answer describes a live run.
            if let Ok(Some(settled)) = self.deps.find_run(workspace, id).await
                && settled.status.is_terminal()
            {
                return Ok(CancelOutcome::Ended(Box::new(settled)));
            }
        }
        child_cancellation::cancel_children(&self.deps, id).await;
        if run.status == RunStatus::Created && self.deps.pauses.covers(run) {
            // No process drives a held run, so its task here ends it.
            self.executor.spawn(id, workspace.clone(), None);
        }
        // The run may have started since.
        self.deps
            .send_cancel(id, run.cancel_requested_at.unwrap_or(now));
        Ok(outcome)
    }
}
