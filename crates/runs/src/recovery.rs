//! Recovery of orphaned, undispatched and overdue runs, and background maintenance.

mod cancel_polling;
mod cleanup;
mod clock_check;
pub(crate) mod orphans;
mod owner_locks;

use std::sync::Arc;
use std::time::Duration;

use domain::run::{Failure, FailureCode, Run};
use protocol::run::RunStatus;
use store::{Backend, LeaseFilter, StoreError};
use tokio::time::Instant;

use crate::artifacts::Artifacts;
use crate::call_usage::CallUsage;
use crate::child_cancellation;
use crate::deps::RunDeps;
use crate::executor::RunExecutor;
use crate::ticks::ticks_every;
use crate::unconfirmed::UnconfirmedDispatches;
use telemetry::metrics::{self, RecoveryReason};

/// Runs of one query; the next query returns the rest.
const BATCH: u64 = 200;
/// Maximum time until a lapsed lease is noticed.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);
/// Maximum time of a run in the queue.
const MAX_QUEUE_TIME: Duration = Duration::from_hours(1);
/// Age at which a created run counts as abandoned: its process died, or the process that released it did not
/// dispatch it.
const CREATED_TIMEOUT: Duration = Duration::from_secs(5);

/// Recovers runs that have lost their process, and releases its reservations.
pub struct RunRecovery {
    pub(super) deps: Arc<RunDeps>,
    pub(super) executor: Arc<RunExecutor>,
    pub(super) unconfirmed: Arc<UnconfirmedDispatches>,
    pub(super) usage: Arc<CallUsage>,
    pub(super) artifacts: Artifacts,
}

impl RunRecovery {
    /// Recovers the runs of an earlier process before the first request. SQLite has no other owner, so every
    /// running run is an orphan.
    pub async fn sweep_at_boot(&self) -> Result<(), StoreError> {
        let (leases, age) = match self.deps.store.backend() {
            Backend::Sqlite => (LeaseFilter::All, None),
            // Other replicas dispatch their own runs.
            Backend::Postgres => (LeaseFilter::Expired, Some(CREATED_TIMEOUT)),
        };
        self.deps.pauses.refresh(&self.deps.store).await?;
        self.end_orphans(leases).await?;
        self.release_reservations().await?;
        self.dispatch_created(age).await
    }

    /// Sweeps, deletes and indexes until the process stops.
    pub async fn keep_sweeps(&self) {
        let all = async {
            tokio::join!(
                self.keep_reservations(),
                self.keep_marking_lapsed(),
                clock_check::keep_comparing(&self.deps),
                cancel_polling::keep_polling(&self.deps),
                self.keep_sweeping(),
                // Boxed, because its future is large.
                Box::pin(self.keep_owner_lock()),
                cleanup::keep_deleting(&self.artifacts),
                cleanup::keep_indexing(&self.deps)
            )
        };
        self.deps.until_closing(all).await;
    }

    /// Renews and releases the reservations of calls until the process stops.
    async fn keep_reservations(&self) {
        let mut tick = ticks_every(self.deps.limits.lease / 5);
        loop {
            tick.tick().await;
            // A loop of its own: the leases of runs must not wait for reservations.
            if let Err(error) = self.release_reservations().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot renew or release the reservations of calls"
                );
            }
        }
    }

    /// Marks live runs as lost when their lease ends, for example in a database outage. Recovery ends them here or on
    /// another replica.
    async fn keep_marking_lapsed(&self) {
        let mut tick = ticks_every(self.deps.limits.lease / 20);
        loop {
            tick.tick().await;
            // Independent of the renewal, which may fail or hang.
            self.deps.live.mark_lapsed(Instant::now());
        }
    }

    async fn keep_sweeping(&self) {
        let mut tick = ticks_every(BETWEEN_SWEEPS.min(self.deps.limits.lease / 3));
        loop {
            tick.tick().await;
            if let Err(error) = self.sweep().await {
                tracing::error!(error = &error as &dyn std::error::Error, "recovery failed");
            }
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        // First: a stored run that no process drives yet must not end as an orphan.
        self.unconfirmed.resolve().await?;
        self.end_orphans(LeaseFilter::Expired).await?;
        self.end_overdue().await?;
        child_cancellation::end_all_children(&self.deps).await?;
        if self.deps.lifecycle.stopping.is_cancelled() {
            return Ok(());
        }
        self.dispatch_created(Some(CREATED_TIMEOUT)).await
    }

    /// Renews the reservations of this process, then releases lapsed ones.
    async fn release_reservations(&self) -> Result<(), StoreError> {
        // First, because after an outage this process's own reservations are late as well.
        self.usage.renew_reservations().await?;
        while self.deps.store.usage().release_reservations().await? > 0 {}
        Ok(())
    }

    /// Ends runs that have been queued or held for too long.
    async fn end_overdue(&self) -> Result<(), StoreError> {
        for run in self
            .deps
            .store
            .runs()
            .overdue_runs(MAX_QUEUE_TIME, BATCH)
            .await?
        {
            let message = match run.status {
                RunStatus::Queued => "the run waited an hour for others of its conversation",
                _ => "the run waited an hour for the end of a pause",
            };
            let failure = Failure::new(FailureCode::DeadlineExceeded, message);
            self.end_waiting(&run, failure).await?;
        }
        Ok(())
    }

    /// Ends a run, unless it was released since the query.
    async fn end_waiting(&self, run: &Run, failure: Failure) -> Result<(), StoreError> {
        let now = self.deps.find_run(&run.workspace, run.id).await?;
        // The query is old: ends of earlier runs may have released this one.
        let is_waiting = |now: &Run| now.status == RunStatus::Queued || self.deps.pauses.holds(now);
        if let Some(now) = now.filter(is_waiting)
            && self.executor.end_waiting(now, failure).await
        {
            metrics::swept(RecoveryReason::Overdue);
        }
        Ok(())
    }

    async fn dispatch_created(&self, age: Option<Duration>) -> Result<(), StoreError> {
        for run in self.deps.store.runs().created_runs(age, BATCH).await? {
            if !self.deps.live.contains(run.id) {
                metrics::swept(RecoveryReason::Dispatched);
            }
            self.executor.spawn(run.id, run.workspace, None);
        }
        Ok(())
    }
}
