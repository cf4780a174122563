//! Execution of runs: one task for each, all of them children of one tracker.

mod drive;
mod end;
pub(crate) mod next_step;
mod restart;
mod resume;

use std::sync::Arc;

use domain::run::Run;
use futures_util::FutureExt;
use protocol::id::{RunId, WorkspaceId};
use store::{LeaseFilter, ResumePoint};
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::dispatch::Dispatcher;
use crate::ending::internal_failure;
use crate::finish::Finisher;
use crate::inputs::RunInputs;
use crate::live::{LiveEntry, LiveRun};
use crate::prepare::Preparer;
use crate::relay::Relayer;
use telemetry::metrics;

/// Drives runs from their dispatch to their end.
pub(super) struct RunExecutor {
    pub(super) deps: Arc<RunDeps>,
    pub(super) preparer: Preparer,
    pub(super) dispatcher: Dispatcher,
    pub(super) relayer: Relayer,
    pub(super) finisher: Finisher,
}

/// A run that was taken over and can be resumed.
pub(super) struct Takeover {
    pub(super) run: Run,
    /// `None`: the runner streams its results.
    pub(super) resume_point: Option<ResumePoint>,
    /// End of the lease, counted from before the request for it.
    pub(super) held_until: Instant,
}

impl RunExecutor {
    /// Drives a created run in a task of its own, unless this process drives it already. `inputs`: those in memory of a
    /// run that was just stored.
    pub(super) fn spawn(
        self: &Arc<Self>,
        id: RunId,
        workspace: WorkspaceId,
        mut inputs: Option<Box<RunInputs>>,
    ) {
        let live_entry = inputs.as_mut().and_then(|inputs| inputs.live_entry.take());
        let live_entry = live_entry.unwrap_or_else(|| LiveEntry::enter(&self.deps.live, id));
        // This process already drives the run: dispatch and recovery may meet.
        let Some(live) = live_entry.into_run() else {
            return;
        };
        // Waiting streams follow the live run from now on.
        self.deps.notifier.wake(id);
        let (executor, driven) = (Arc::clone(self), Arc::clone(&live));
        self.spawn_guarded(id, workspace.clone(), live, async move {
            executor.drive(&driven, id, &workspace, inputs).await;
        });
    }

    /// Resumes a run that was taken over, in a task of its own.
    pub(super) fn spawn_resumed(self: &Arc<Self>, taken: Takeover) {
        let Some(live) = self.deps.live.enter_new(taken.run.id) else {
            return;
        };
        self.deps.notifier.wake(taken.run.id);
        let (executor, driven) = (Arc::clone(self), Arc::clone(&live));
        let (id, workspace) = (taken.run.id, taken.run.workspace.clone());
        self.spawn_guarded(id, workspace, live, async move {
            executor.resume(&driven, taken).await;
        });
    }

    /// Ends the run if its task panics, so that no client waits for ever.
    fn spawn_guarded(
        self: &Arc<Self>,
        id: RunId,
        workspace: WorkspaceId,
        live: Arc<LiveRun>,
        driven: impl Future<Output = ()> + Send + 'static,
    ) {
        let executor = Arc::clone(self);
        // Boxed, because the task would hold the future twice: as an argument and while it is awaited.
        let driven = Box::pin(driven);
        self.deps.lifecycle.tasks.spawn(async move {
            let _guard = executor.deps.live.guard(id, &live);
            if std::panic::AssertUnwindSafe(driven)
                .catch_unwind()
                .await
                .is_err()
            {
                tracing::error!(run.id = %id, "run {id} panicked");
                metrics::panicked(metrics::PanickedTask::Run);
                // Another replica may have taken it over.
                let failure = internal_failure();
                let ended = executor.end_orphan(id, &workspace, LeaseFilter::Own, failure);
                Box::pin(ended).await;
            }
        });
    }
}
