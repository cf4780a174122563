//! Ends of runs, also of those that no process drives.

use std::sync::Arc;

use domain::normalize::{ResultCounts, RunMessages};
use domain::run::{Failure, Run};
use protocol::id::{RunId, WorkspaceId};
use store::{LeaseFilter, StoreError, failpoint};

use super::RunExecutor;
use crate::ending::EndCause;
use crate::event_buffer::EventBuffer;
use crate::live::LiveRun;

impl RunExecutor {
    /// Ends a run, and starts the runs that its end releases. On an error the run has no end yet.
    pub(super) async fn finish(
        self: &Arc<Self>,
        live: &LiveRun,
        run: &Run,
        buffer: EventBuffer,
        tally: ResultCounts,
        ending: EndCause,
    ) -> Result<(), StoreError> {
        let finished = self.finisher.finish(live, run, buffer, tally, ending);
        let Some(mut ended) = finished.await? else {
            return Ok(());
        };
        // After a stop they stay `created`; the next start or another replica dispatches them.
        let passed = failpoint::pass("succession.before_dispatch").await;
        if !self.deps.lifecycle.stopping.is_cancelled() && passed.is_ok() {
            for next in std::mem::take(&mut ended.next) {
                // In tasks of their own: a long queue of a conversation must not be a recursion.
                self.spawn(next, run.workspace.clone(), None);
            }
        }
        self.finisher.report(live, run, &ended).await;
        Ok(())
    }

    /// Ends a run that no process drives, if its lease is among `leases` or it has none. The new epoch fences off
    /// writes of the former owner.
    pub(crate) async fn end_orphan(
        self: &Arc<Self>,
        id: RunId,
        workspace: &WorkspaceId,
        leases: LeaseFilter,
        failure: Failure,
    ) {
        match self.finisher.own_orphan(id, workspace, leases).await {
            Ok(Some(run)) => self.end_taken_over(&run, failure).await,
            Ok(None) => {}
            Err(error) => takeover_failed(id, &error),
        }
    }

    /// Ends a queued run, unless it was released in between. False: it was not ended.
    pub(crate) async fn end_waiting(self: &Arc<Self>, run: Run, failure: Failure) -> bool {
        let id = run.id;
        match self.finisher.own_unbegun(run).await {
            Ok(Some(run)) => {
                self.end_taken_over(&run, failure).await;
                true
            }
            Ok(None) => false,
            Err(error) => {
                takeover_failed(id, &error);
                false
            }
        }
    }

    /// Ends a run whose lease was taken over.
    pub(crate) async fn end_taken_over(self: &Arc<Self>, run: &Run, failure: Failure) {
        let live = self.deps.live.enter(run.id);
        let _guard = self.deps.live.guard(run.id, &live);
        let buffer = EventBuffer::new(run);
        let ending = EndCause::Gateway {
            failure,
            messages: RunMessages::default(),
        };
        // The next sweep retries a failed end.
        let _ = self
            .finish(&live, run, buffer, ResultCounts::default(), ending)
            .await;
        // Local waiters do not know that the run was live here.
        self.deps.notifier.wake(run.id);
    }
}

fn takeover_failed(id: RunId, error: &StoreError) {
    let error = error as &dyn std::error::Error;
    tracing::error!(run.id = %id, error, "cannot take over run {id}");
}
