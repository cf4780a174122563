//! Results that a runner appends after it has answered `202`: taken by any replica, judged by the owner.

use std::sync::Arc;
use std::time::Duration;

use store::{
    AppendResults, AuditEntry, Heartbeat, Heartbeating, ResultsAppended, StoreError, result_digest,
};
use tokio::time::Instant;

use crate::Runs;
use crate::bus::Ring;
use crate::grant::Grant;

/// A runner may call before its `202` has been heard here.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// What is appended is judged at once, unless the owner of the run is lost or its database is slow.
const JUDGING_PATIENCE: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

impl Runs {
    /// Stores results of a live run. Its owner judges them, and they appear in the ledger. `None`: another call of the
    /// run waits already for its runner's answer to be known.
    pub async fn append_results(
        &self,
        grant: &Grant,
        results: Vec<(u64, String)>,
        audit: AuditEntry,
    ) -> Result<Option<ResultsAppended>, StoreError> {
        let run_id = grant.run.id;
        let digests = results.iter().map(|(_, raw)| result_digest(raw)).collect();
        let append = Arc::new(AppendResults {
            digests,
            run_id,
            attempt: grant.attempt,
            lease: self.0.limits.append_lease,
            results,
            max_bytes: self.0.limits.results.run_bytes as u64,
            audit,
        });
        let ask = || self.0.store.write(Arc::clone(&append));
        let is_early = |outcome: &ResultsAppended| *outcome == ResultsAppended::NotAsync;
        let outcome = self.once_answered(grant, ask, is_early).await?;
        if let Some(ResultsAppended::Through(_)) = outcome {
            self.0.doorbell.wake(run_id);
            if !self.0.live.contains(run_id) {
                self.0.doorbell.ring(Ring::Advanced(run_id));
            }
        }
        Ok(outcome)
    }

    /// Notes that the runner of a live run is alive. `None`: another call of the run waits already for its runner's
    /// answer to be known.
    pub async fn hear_heartbeat(&self, grant: &Grant) -> Result<Option<Heartbeating>, StoreError> {
        let heartbeat = Heartbeat {
            run_id: grant.run.id,
            attempt: grant.attempt,
            lease: self.0.limits.append_lease,
        };
        let ask = || self.0.store.write(heartbeat);
        let is_early = |heard: &Heartbeating| *heard == Heartbeating::NotAsync;
        self.once_answered(grant, ask, is_early).await
    }

    /// Waits until what a live run has appended by now is judged: a call that comes behind it finds and follows what it
    /// wrote. False: its owner has not come to it in time.
    pub async fn judges_appended(&self, grant: &Grant) -> Result<bool, StoreError> {
        let run_id = grant.run.id;
        if let Some(live) = self.0.live.get(run_id)
            && live.streams(Instant::now())
        {
            return Ok(true);
        }
        let find = || self.0.store.leases().find_backlog(run_id, grant.attempt);
        let Some(first) = find().await? else {
            return Ok(true);
        };
        let give_up = Instant::now() + JUDGING_PATIENCE;
        let mut now = Some(first);
        let mut pause = FIRST_PAUSE;
        while now.is_some_and(|now| !now.is_judged_to(first.accepted_through)) {
            if Instant::now() >= give_up {
                return Ok(false);
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
            now = find().await?;
        }
        Ok(true)
    }

    /// Asks again while the answer of the run's runner may still be on its way. `None`: another call of the run does.
    async fn once_answered<T, F>(
        &self,
        grant: &Grant,
        ask: impl Fn() -> F,
        is_early: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut told = ask().await?;
        if !is_early(&told) {
            return Ok(Some(told));
        }
        let (run_id, store) = (grant.run.id, &self.0.store);
        let Some(_waits) = self.0.calls.begin_wait(run_id, self.0.clock.now_ms()) else {
            return Ok(None);
        };
        let give_up = Instant::now() + ANSWER_PATIENCE;
        while is_early(&told)
            && Instant::now() < give_up
            && !store.runs().is_streaming(run_id, grant.attempt).await?
        {
            tokio::time::sleep(BETWEEN_LOOKS).await;
            told = ask().await?;
        }
        Ok(Some(told))
    }
}
