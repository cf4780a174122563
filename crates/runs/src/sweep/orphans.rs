//! Runs that have lost their gateway: some go on, the others end.

use domain::run::{Failure, FailureCode, Run};
use store::{LeaseFilter, StoreError, failpoint};
use tokio::time::Instant;

use super::BATCH;
use crate::Runs;
use crate::drive::TakenOver;
use crate::settle::settle_taken;
use telemetry::metrics::{self, Swept};

/// Orphans that are ended at once: they share commits.
const AT_ONCE: usize = 32;

fn orphaned() -> Failure {
    let message = "the gateway that ran this was lost; what it stored stands, post the event again";
    Failure::new(FailureCode::HostOrphaned, message)
}

/// Who was asked to end has ended so, whoever drove it.
fn failure_of(run: &Run) -> Failure {
    match run.cancel_requested_at {
        Some(_) => Failure::cancelled(),
        None => orphaned(),
    }
}

impl Runs {
    pub(super) async fn end_orphans(&self, leases: LeaseFilter) -> Result<(), StoreError> {
        // What this process has handed on is not for it to take up again.
        while !self.0.stopping.is_cancelled() {
            let mut expired = self
                .0
                .store
                .leases()
                .expired_runs(&self.0.owner, leases, BATCH)
                .await?;
            let is_last = (expired.len() as u64) < BATCH;
            // Those that live here are driven here: their leases are renewed, or they hear of it.
            expired.retain(|run| !self.0.live.contains(run.id));
            if expired.is_empty() {
                return Ok(());
            }
            // Others sweep as well: each takes what no other is at.
            for some in expired.chunks(AT_ONCE) {
                let ids = some.iter().map(|run| run.id).collect();
                let (owner, lease) = (&self.0.owner, self.0.limits.lease);
                let held_until = Instant::now() + lease;
                let taken = self
                    .0
                    .store
                    .leases()
                    .take_over_batch(ids, owner, lease, leases)
                    .await?;
                failpoint::pass("orphan.after_takeover").await?;
                self.succeed(taken, held_until).await?;
            }
            if is_last {
                break;
            }
        }
        Ok(())
    }

    /// Runs that were taken over: those whose runner appends its results go on here, any other has lost its
    /// runner with its gateway.
    async fn succeed(&self, taken: Vec<Run>, held_until: Instant) -> Result<(), StoreError> {
        let ids: Vec<_> = taken.iter().map(|run| run.id).collect();
        let deferred = self.0.store.leases().async_runs_of(&ids).await?;
        let each = taken.into_iter().map(|run| async {
            if deferred.contains(&run.id) {
                self.resume(run, held_until).await;
            } else {
                self.end_orphan(&run).await;
            }
        });
        futures_util::future::join_all(each).await;
        Ok(())
    }

    async fn resume(&self, run: Run, held_until: Instant) {
        let lease = self.0.limits.append_lease;
        match self
            .0
            .store
            .leases()
            .resume(run.id, run.attempt, lease)
            .await
        {
            Ok(Some(left_off)) => {
                tracing::info!(run.id = %run.id, "run {} is without a gateway, and goes on", run.id);
                metrics::swept(Swept::Continued);
                self.spawn_taken(TakenOver {
                    run,
                    left_off,
                    held_until,
                });
            }
            Ok(None) => self.end_orphan(&run).await,
            Err(error) => {
                tracing::error!(
                    run.id = %run.id, error = &error as &dyn std::error::Error,
                    "where run {} was left off cannot be read", run.id
                );
                // Else it is taken over again when this lease has ended.
                if !error.is_transient() {
                    self.end_orphan(&run).await;
                }
            }
        }
    }

    async fn end_orphan(&self, run: &Run) {
        tracing::warn!(run.id = %run.id, "run {} has lost its gateway", run.id);
        metrics::swept(Swept::Orphaned);
        settle_taken(&self.0, run, failure_of(run)).await;
    }
}
