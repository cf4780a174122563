//! One task for each run, child of one tracker.

use std::sync::Arc;

use futures_util::FutureExt;
use protocol::id::{RunId, WorkspaceId};
use store::LeaseFilter;

use crate::Runs;
use crate::drive::{self, TakenOver};
use crate::live::{Entered, LiveRun};
use crate::prepare::Fresh;
use crate::settle;
use telemetry::metrics;

impl Runs {
    /// Drives a created run in a task of its own, unless it is driven here already. `fresh`: what is
    /// known of a run that was stored just now.
    pub(super) fn spawn(&self, id: RunId, workspace: WorkspaceId, mut fresh: Option<Box<Fresh>>) {
        let entered = fresh.as_mut().and_then(|fresh| fresh.entered.take());
        let entered = entered.unwrap_or_else(|| Entered::enter(&self.0, id));
        let Some(live) = entered.into_run() else {
            return;
        };
        // Who has waited for it watches it here from now on.
        self.0.doorbell.wake(id);
        let (inner, driven) = (Arc::clone(&self.0), Arc::clone(&live));
        let task = (id, workspace.clone(), live);
        self.spawn_guarded(task, async move {
            drive::drive(&inner, &driven, (id, &workspace), fresh).await;
        });
    }

    /// Goes on with a run that was taken over, in a task of its own.
    pub(super) fn spawn_taken(&self, taken: TakenOver) {
        let Some(live) = self.0.live.enter_new(taken.run.id) else {
            return;
        };
        self.0.doorbell.wake(taken.run.id);
        let (inner, driven) = (Arc::clone(&self.0), Arc::clone(&live));
        let task = (taken.run.id, taken.run.workspace.clone(), live);
        self.spawn_guarded(task, async move {
            drive::resume(&inner, &driven, taken).await;
        });
    }

    /// Whatever becomes of the task, nobody waits for its run for ever.
    fn spawn_guarded(
        &self,
        (id, workspace, live): (RunId, WorkspaceId, Arc<LiveRun>),
        driven: impl Future<Output = ()> + Send + 'static,
    ) {
        let inner = Arc::clone(&self.0);
        // In a box: a task keeps what it was given beside what it awaits.
        let driven = Box::pin(driven);
        self.0.tasks.spawn(async move {
            let _leaving = inner.live.leaving(id, &live);
            if std::panic::AssertUnwindSafe(driven)
                .catch_unwind()
                .await
                .is_err()
            {
                tracing::error!(run.id = %id, "run {id} panicked");
                metrics::panicked(metrics::Task::Run);
                // Another replica may have taken it over.
                let failure = settle::internal();
                let settled =
                    settle::settle_orphan(&inner, id, &workspace, LeaseFilter::Own, failure);
                Box::pin(settled).await;
            }
        });
    }
}
