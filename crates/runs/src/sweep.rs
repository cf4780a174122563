//! Leases, orphans, runs that nobody has dispatched (runs §2), and transcripts that nobody has indexed.

mod orphans;
mod renewal;

use std::time::Duration;

use domain::run::{Failure, FailureCode, Run};
use protocol::run::RunStatus;
use store::{Backend, LeaseFilter, StoreError};
use tokio::time::Instant;

use crate::Runs;
use crate::settle::settle_waiting;
use telemetry::metrics::{self, Swept};

/// Others commit in between.
const BETWEEN_DELETES: Duration = Duration::from_millis(20);
/// Runs of one look at the tables; the next look takes the rest.
const BATCH: u64 = 200;
/// The longest that a lapsed lease goes unnoticed.
const BETWEEN_SWEEPS: Duration = Duration::from_secs(1);
/// Between two looks at who was asked to end: rings come faster than the database should be asked.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);
/// Past this, other replicas refuse the tokens that this one signs.
const MOST_SKEW_MS: u64 = 5_000;
/// The longest that a run waits behind others.
const QUEUE_PATIENCE: Duration = Duration::from_hours(1);
/// A created run this old has lost the process that made it, or was let go by an end whose process
/// did not dispatch it.
const CREATED_PATIENCE: Duration = Duration::from_secs(5);

fn tick_of(pause: Duration) -> tokio::time::Interval {
    let mut tick = tokio::time::interval(pause);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    tick
}

impl Runs {
    /// Before the first request: what an earlier process left behind. The embedded database has no
    /// other owner, so everything that runs there is an orphan.
    pub async fn sweep_at_boot(&self) -> Result<(), StoreError> {
        let (leases, age) = match self.0.store.backend() {
            Backend::Sqlite => (LeaseFilter::All, None),
            // Those of other replicas are theirs to dispatch.
            Backend::Postgres => (LeaseFilter::Expired, Some(CREATED_PATIENCE)),
        };
        self.end_orphans(leases).await?;
        self.release_reservations().await?;
        self.dispatch_created(age).await
    }

    /// Sweeps, deletes and indexes until the process stops.
    pub async fn keep_sweeps(&self) {
        let all = async {
            tokio::join!(
                self.keep_reservations(),
                self.keep_letting_go(),
                self.keep_comparing_clocks(),
                self.keep_hearing_of_cancels(),
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

    /// Apart from the leases of runs, since more hangs on those.
    async fn keep_reservations(&self) {
        let mut tick = tick_of(self.0.limits.lease / 5);
        loop {
            tick.tick().await;
            if let Err(error) = self.release_reservations().await {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "what is reserved for calls could be neither held nor given back"
                );
            }
        }
    }

    /// While the database does not answer, runs go whose lease ends: nobody can say any more that they
    /// are ours. The sweep ends them, here or on another replica. However the renewal fares: it may
    /// fail at once, or hang.
    async fn keep_letting_go(&self) {
        let mut tick = tick_of(self.0.limits.lease / 20);
        loop {
            tick.tick().await;
            self.0.live.let_go(Instant::now());
        }
    }

    /// As often as leases are renewed, and never in their way.
    async fn keep_comparing_clocks(&self) {
        let mut tick = tick_of(self.0.limits.lease / 5);
        let mut are_apart = false;
        loop {
            tick.tick().await;
            // Who cannot ask hears of it by the renewal.
            let _ = self.compare_clocks(&mut are_apart).await;
        }
    }

    /// What was asked of another replica: a ring says when to look, and without rings it is looked
    /// for now and then.
    async fn keep_hearing_of_cancels(&self) {
        let mut is_failing = false;
        while self.0.store.backend() == Backend::Postgres {
            tokio::select! {
                () = self.0.doorbell.cancels.notified() => {}
                () = tokio::time::sleep(self.0.limits.poll) => {}
            }
            let heard = self.hear_of_cancels().await;
            if let Err(error) = &heard
                && !is_failing
            {
                let error = error as &dyn std::error::Error;
                tracing::error!(error, "cancels of other replicas cannot be looked for");
            }
            is_failing = heard.is_err();
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn hear_of_cancels(&self) -> Result<(), StoreError> {
        for (id, at) in self
            .0
            .store
            .leases()
            .cancel_requests_of(&self.0.owner)
            .await?
        {
            if let Some(live) = self.0.live.get(id) {
                live.request_cancel(at);
            }
        }
        Ok(())
    }

    async fn keep_sweeping(&self) {
        let mut tick = tick_of(BETWEEN_SWEEPS.min(self.0.limits.lease / 3));
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
        while self.0.store.conversations().index_backlog().await? {}
        Ok(())
    }

    fn tick(&self) -> tokio::time::Interval {
        tick_of(self.0.limits.lease / 3)
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        self.find_unheard().await?;
        self.end_orphans(LeaseFilter::Expired).await?;
        self.end_overdue().await?;
        self.end_all_children().await?;
        if self.0.stopping.is_cancelled() {
            return Ok(());
        }
        self.dispatch_created(Some(CREATED_PATIENCE)).await
    }

    /// Deletes what has had its time: a little at once, so that nobody waits long behind it.
    async fn keep_clean(&self) {
        let mut tick = self.tick();
        loop {
            tick.tick().await;
            while self.clean_some().await > 0 {
                tokio::time::sleep(BETWEEN_DELETES).await;
            }
        }
    }

    /// Each kind by itself: what is in the way of one of them holds no other up.
    async fn clean_some(&self) -> u64 {
        let store = &self.0.store;
        let mut swept = vec![
            store.state().sweep_storage().await,
            store.knowledge().sweep_knowledge().await.map(u64::from),
            self.sweep_artifacts().await,
            store.leases().sweep_appends().await,
            store.retention().sweep_tool_calls().await,
            store.retention().sweep_budgets().await,
            store.retention().sweep_shared_parts().await,
        ];
        if let Some(retention) = self.0.limits.retention {
            swept.push(store.retention().prune_runs(retention).await);
        }
        if let Some(kept) = self.0.limits.audit_kept {
            swept.push(store.audit_log().sweep_audit(kept).await);
        }
        let deleted = swept.into_iter().map(|one| {
            one.unwrap_or_else(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "what is old could not be deleted, trying again");
                0
            })
        });
        deleted.sum()
    }

    /// Holds what calls of this process have reserved, and gives back what nobody holds any more: in this order,
    /// since after an outage ours are late, too.
    async fn release_reservations(&self) -> Result<(), StoreError> {
        self.renew_reservations().await?;
        while self.0.store.usage().release_reservations().await? > 0 {}
        Ok(())
    }

    /// Runs that have waited behind others for too long.
    async fn end_overdue(&self) -> Result<(), StoreError> {
        for run in self
            .0
            .store
            .runs()
            .overdue_runs(QUEUE_PATIENCE, BATCH)
            .await?
        {
            let message = "the run waited an hour behind others of its conversation";
            let failure = Failure::new(FailureCode::DeadlineExceeded, message);
            self.end_waiting(&run, failure).await?;
        }
        Ok(())
    }

    /// Ends a run, unless it has been let go since it was listed.
    async fn end_waiting(&self, run: &Run, failure: Failure) -> Result<(), StoreError> {
        let now = self.0.store.runs().find_run(&run.workspace, run.id).await?;
        if let Some(now) = now.filter(|now| now.status == RunStatus::Queued)
            && settle_waiting(&self.0, now, failure).await
        {
            metrics::swept(Swept::Overdue);
        }
        Ok(())
    }

    async fn dispatch_created(&self, age: Option<Duration>) -> Result<(), StoreError> {
        for run in self.0.store.runs().created_runs(age, BATCH).await? {
            if !self.0.live.contains(run.id) {
                metrics::swept(Swept::Dispatched);
            }
            self.spawn(run.id, run.workspace, None);
        }
        Ok(())
    }

    /// Says so when this clock and the database's have come apart, and when they have met again.
    async fn compare_clocks(&self, are_apart: &mut bool) -> Result<(), StoreError> {
        let before = self.0.clock.now_ms();
        let Some(theirs) = self.0.store.read_clock().await? else {
            return Ok(());
        };
        let after = self.0.clock.now_ms();
        // Their moment lies between ours: what the answer took is nobody's fault.
        let skew_ms = theirs - theirs.clamp(before.min(after), after.max(before));
        let apart = skew_ms.unsigned_abs() > MOST_SKEW_MS;
        if apart && !*are_apart {
            tracing::error!(
                skew_ms,
                "this clock differs from the database's: run tokens of this replica are refused by \
                 others; set both by the same source of time"
            );
        } else if *are_apart && !apart {
            tracing::info!("this clock agrees with the database's again");
        }
        *are_apart = apart;
        Ok(())
    }
}
