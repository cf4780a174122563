//! Orphaned runs: async and resumable ones continue, others end.

use domain::manifest::resume_window;
use domain::run::{Failure, FailureCode, Run};
use protocol::manifest::AgentRunnerManifest;
use store::{LeaseFilter, ResumePoint, StoreError, failpoint};
use tokio::time::Instant;

use super::{BATCH, RunRecovery};
use crate::executor::Takeover;
use telemetry::metrics::{self, RecoveryReason};

/// Orphans that are ended concurrently, so that they share commits.
const AT_ONCE: usize = 32;

fn orphaned() -> Failure {
    let message = "the gateway process of this run was lost; its stored events stay, \
                   POST /v1/runs/{run_id}/retry runs the event again";
    Failure::new(FailureCode::HostOrphaned, message)
}

/// Failure of a run that has lost its process: a run with a cancel request ends as cancelled.
pub(crate) fn failure_of(run: &Run) -> Failure {
    match run.cancel_requested_at {
        Some(_) => Failure::cancelled(),
        None => orphaned(),
    }
}

/// Recovery of an async run that was taken over.
#[derive(Debug)]
pub(crate) enum AsyncRecovery {
    Resume(ResumePoint),
    End,
    /// The run is taken over again when this lease ends.
    Wait,
}

/// Decides by the position that the former owner has left.
pub(crate) fn recovery_of(position: Result<Option<ResumePoint>, StoreError>) -> AsyncRecovery {
    match position {
        Ok(Some(resume_point)) => AsyncRecovery::Resume(resume_point),
        Err(error) if error.is_transient() => AsyncRecovery::Wait,
        // Without a readable position, the next owner cannot resume it either.
        Ok(None) | Err(_) => AsyncRecovery::End,
    }
}

/// Recovery of a streaming run that was taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamRecovery {
    /// The runner works on, and can be attached to.
    Attach,
    End,
    /// The run is taken over again when this lease ends.
    Wait,
}

/// Decides by the manifest of the runner.
pub(crate) fn recovery_of_stream(
    manifest: Result<Option<AgentRunnerManifest>, StoreError>,
) -> StreamRecovery {
    match manifest {
        Ok(Some(manifest)) if resume_window(&manifest).is_some() => StreamRecovery::Attach,
        Err(error) if error.is_transient() => StreamRecovery::Wait,
        Ok(_) | Err(_) => StreamRecovery::End,
    }
}

impl RunRecovery {
    pub(super) async fn end_orphans(&self, leases: LeaseFilter) -> Result<(), StoreError> {
        // A stopping process does not resume the runs that it has released.
        while !self.deps.lifecycle.stopping.is_cancelled() {
            let mut expired = self
                .deps
                .store
                .leases()
                .expired_runs(&self.deps.owner, leases, BATCH)
                .await?;
            let is_last = (expired.len() as u64) < BATCH;
            // Live runs are driven here: their leases are renewed, or they are marked as lost.
            expired.retain(|run| !self.deps.live.contains(run.id));
            if expired.is_empty() {
                return Ok(());
            }
            self.take_over(&expired, leases).await?;
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Takes runs over. Returns their number: other replicas sweep as well, and each run is taken over by one of them.
    pub(super) async fn take_over(
        &self,
        runs: &[Run],
        leases: LeaseFilter,
    ) -> Result<usize, StoreError> {
        let mut count = 0;
        for some in runs.chunks(AT_ONCE) {
            let ids = some.iter().map(|run| run.id).collect();
            let (owner, lease) = (&self.deps.owner, self.deps.limits.lease);
            // Taken before the database reads its clock, so that the lease ends here first.
            let held_until = Instant::now() + lease;
            let taken = self
                .deps
                .store
                .leases()
                .take_over_batch(ids, owner, lease, leases)
                .await?;
            failpoint::pass("orphan.after_takeover").await?;
            count += taken.len();
            self.resume_or_end(taken, held_until).await?;
        }
        Ok(count)
    }

    /// Continues async and resumable runs that were taken over, and ends the others, whose runner was lost with their
    /// gateway.
    async fn resume_or_end(&self, taken: Vec<Run>, held_until: Instant) -> Result<(), StoreError> {
        let ids: Vec<_> = taken.iter().map(|run| run.id).collect();
        let deferred = self.deps.store.leases().async_runs_of(&ids).await?;
        let each = taken.into_iter().map(|run| async {
            if deferred.contains(&run.id) {
                self.resume(run, held_until).await;
            } else {
                self.attach_or_end(run, held_until).await;
            }
        });
        // Concurrent, so that the ends of many orphans share commits.
        futures_util::future::join_all(each).await;
        Ok(())
    }

    async fn resume(&self, run: Run, held_until: Instant) {
        let lease = self.deps.limits.append_lease;
        let position = self
            .deps
            .store
            .leases()
            .resume(run.id, run.attempt, lease)
            .await;
        if let Err(error) = &position {
            tracing::error!(
                run.id = %run.id, error = error as &dyn std::error::Error,
                "cannot read the position of run {}", run.id
            );
        }
        match recovery_of(position) {
            AsyncRecovery::Resume(resume_point) => {
                tracing::info!(run.id = %run.id, "run {} has no owner; this replica continues it", run.id);
                metrics::swept(RecoveryReason::Continued);
                self.executor.spawn_resumed(Takeover {
                    run,
                    resume_point: Some(resume_point),
                    held_until,
                });
            }
            AsyncRecovery::End => self.end_orphan(&run).await,
            AsyncRecovery::Wait => {}
        }
    }

    async fn attach_or_end(&self, run: Run, held_until: Instant) {
        let manifest = self.deps.find_manifest(&run).await;
        match recovery_of_stream(manifest) {
            StreamRecovery::Attach => {
                tracing::info!(run.id = %run.id, "run {} has no owner; this replica attaches to its runner", run.id);
                metrics::swept(RecoveryReason::Continued);
                self.executor.spawn_resumed(Takeover {
                    run,
                    resume_point: None,
                    held_until,
                });
            }
            StreamRecovery::End => self.end_orphan(&run).await,
            StreamRecovery::Wait => {}
        }
    }

    async fn end_orphan(&self, run: &Run) {
        tracing::warn!(run.id = %run.id, "run {} has lost its owner", run.id);
        metrics::swept(RecoveryReason::Orphaned);
        self.executor.end_taken_over(run, failure_of(run)).await;
    }
}
