//! Leases, orphans, runs that nobody has dispatched (runs §2), and transcripts that nobody has indexed.

use std::time::Duration;

use domain::run::{Failure, FailureCode, Run};
use protocol::run::RunStatus;
use store::{Backend, StoreError};

use crate::runs::dispatch::millis;
use crate::runs::settle::settle_orphan;
use crate::runs::{ONLY_WAITING, Runs};

/// Others commit in between.
const BETWEEN_DELETES: Duration = Duration::from_millis(20);
/// Runs of one look at the tables; the next look takes the rest.
const BATCH: u64 = 200;
/// The longest that a run waits behind others.
const QUEUE_PATIENCE: Duration = Duration::from_hours(1);
/// A created run this old has lost the process that made it, or was let go by an end whose process
/// did not dispatch it.
const CREATED_PATIENCE: Duration = Duration::from_secs(5);

fn orphaned() -> Failure {
    let message = "the gateway that ran this was lost; what it stored stands, post the event again";
    Failure::new(FailureCode::HostOrphaned, message)
}

impl Runs {
    /// Before the first request: what an earlier process left behind. The embedded database has no
    /// other owner, so everything that runs there is an orphan.
    pub async fn sweep_at_boot(&self) -> Result<(), StoreError> {
        let before = match self.0.store.backend() {
            Backend::Sqlite => i64::MAX,
            Backend::Postgres => self.0.clock.now_ms(),
        };
        self.end_orphans(before).await?;
        self.dispatch_created(i64::MAX).await
    }

    /// Renews leases, and sweeps, deletes and indexes beside that, until the process stops.
    pub async fn keep_leases(&self) {
        let all = async {
            tokio::join!(
                self.keep_renewing(),
                self.keep_sweeping(),
                self.keep_clean(),
                self.keep_indexing()
            )
        };
        tokio::select! {
            () = self.0.closing.cancelled() => {}
            _ = all => {}
        }
    }

    async fn keep_renewing(&self) {
        let mut tick = self.tick();
        loop {
            tick.tick().await;
            if let Err(error) = self.renew_leases().await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "leases could not be renewed"
                );
            }
        }
    }

    async fn keep_sweeping(&self) {
        let mut tick = self.tick();
        loop {
            tick.tick().await;
            if let Err(error) = self.sweep().await {
                tracing::error!(error = &error as &dyn std::error::Error, "the sweep failed");
            }
        }
    }

    /// Enters what older gateways wrote, of earlier days or beside this one, into the full-text
    /// index of transcripts.
    async fn keep_indexing(&self) {
        let mut tick = self.tick();
        loop {
            tick.tick().await;
            if let Err(error) = self.index_all().await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "transcripts could not be indexed; their search is not complete yet"
                );
            }
        }
    }

    async fn index_all(&self) -> Result<(), StoreError> {
        // Some at a time: whoever else writes comes in between.
        while self.0.store.enter_some_terms().await? {}
        Ok(())
    }

    fn tick(&self) -> tokio::time::Interval {
        let mut tick = tokio::time::interval(self.0.limits.lease / 3);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        tick
    }

    /// Renews what lives here, hears of cancels that came by another way, and lets go of runs
    /// whose lease somebody else has taken.
    async fn renew_leases(&self) -> Result<(), StoreError> {
        let ids = self.0.live.leased();
        if ids.is_empty() {
            return Ok(());
        }
        let until = self.0.clock.now_ms() + millis(self.0.limits.lease);
        let held = self
            .0
            .store
            .renew_leases(&self.0.owner, ids.clone(), until)
            .await?;
        for id in ids {
            let Some(live) = self.0.live.get(id) else {
                continue;
            };
            match held.get(&id) {
                Some(cancel_requested_at) => {
                    live.hold_until(until);
                    if let Some(at) = cancel_requested_at {
                        live.request_cancel(*at);
                    }
                }
                None if live.has_ended() => {}
                None => live.lost.cancel(),
            }
        }
        Ok(())
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let now = self.0.clock.now_ms();
        self.end_orphans(now).await?;
        self.end_overdue(now - millis(QUEUE_PATIENCE)).await?;
        if self.0.stopping.is_cancelled() {
            return Ok(());
        }
        self.dispatch_created(now - millis(CREATED_PATIENCE)).await
    }

    /// Deletes what has had its time: a little at once, so that nobody waits long behind it.
    async fn keep_clean(&self) {
        let mut tick = self.tick();
        loop {
            tick.tick().await;
            loop {
                match self.clean_some().await {
                    Ok(0) => break,
                    Ok(_) => tokio::time::sleep(BETWEEN_DELETES).await,
                    Err(error) => {
                        let error = &error as &dyn std::error::Error;
                        tracing::warn!(error, "what is old could not be deleted, trying again");
                        break;
                    }
                }
            }
        }
    }

    async fn clean_some(&self) -> Result<u64, StoreError> {
        let now = self.0.clock.now_ms();
        let mut deleted = self.0.store.sweep_storage(now).await?;
        if let Some(retention) = self.0.limits.retention {
            let before = now - millis(retention);
            deleted += self.0.store.prune_runs(before, now).await?;
        }
        Ok(deleted)
    }

    async fn end_orphans(&self, before: i64) -> Result<(), StoreError> {
        loop {
            let expired = self.0.store.expired_runs(before, BATCH).await?;
            let is_last = (expired.len() as u64) < BATCH;
            let mut settled = 0;
            // Those that live here are driven here: their leases are renewed, or they hear of it.
            for run in expired.iter().filter(|run| !self.0.live.contains(run.id)) {
                tracing::warn!(run.id = %run.id, "run {} has lost its gateway", run.id);
                settle_orphan(&self.0, run.id, &run.workspace, before, orphaned()).await;
                settled += 1;
            }
            if is_last || settled == 0 {
                return Ok(());
            }
        }
    }

    /// Runs that have waited behind others for too long.
    async fn end_overdue(&self, before: i64) -> Result<(), StoreError> {
        for run in self.0.store.overdue_runs(before, BATCH).await? {
            let message = "the run waited an hour behind others of its conversation";
            let failure = Failure::new(FailureCode::DeadlineExceeded, message);
            self.end_waiting(&run, failure).await?;
        }
        Ok(())
    }

    /// Ends a run, unless it has been let go since it was listed.
    async fn end_waiting(&self, run: &Run, failure: Failure) -> Result<(), StoreError> {
        let now = self.0.store.find_run(&run.workspace, run.id).await?;
        if now.is_some_and(|now| now.status == RunStatus::Queued) {
            settle_orphan(&self.0, run.id, &run.workspace, ONLY_WAITING, failure).await;
        }
        Ok(())
    }

    async fn dispatch_created(&self, before: i64) -> Result<(), StoreError> {
        for run in self.0.store.created_runs(BATCH).await? {
            if run.created_at <= before {
                self.spawn(run.id, run.workspace, None);
            }
        }
        Ok(())
    }
}
