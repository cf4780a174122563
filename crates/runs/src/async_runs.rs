//! Async runs: results that a runner appends after its response `202`. Their owner accepts, validates and stores them in
//! one commit; any other replica accepts them first.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use store::{
    AppendResults, AuditEntry, Heartbeat, Heartbeating, ResultsAppended, StoreError, result_digest,
};
use tokio::time::Instant;
use uuid::Uuid;

use crate::bus::Notification;
use crate::call_limits::CallKind;
use crate::deps::RunDeps;
use crate::grant::Grant;
use crate::notifier::RunWaiter;

/// Time for the `202` to arrive here. A runner may call earlier.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the owner to validate appended results.
const VALIDATION_TIMEOUT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Takes the results that runners append after their answer.
pub struct AsyncRuns {
    pub(super) deps: Arc<RunDeps>,
}

impl AsyncRuns {
    /// Stores results of a live run. Through its owner they are in the ledger when this returns; through another replica
    /// they are accepted, and the owner validates them next. `None`: another call of the run already waits for the
    /// runner's response to arrive.
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
            lease: self.deps.limits.append_lease,
            results,
            max_bytes: self.deps.limits.results.run_bytes as u64,
            audit,
        });
        let ask = || self.append(&append);
        let is_early = |outcome: &ResultsAppended| *outcome == ResultsAppended::NotAsync;
        self.once_answered(grant, ask, is_early).await
    }

    /// Stores results. The owner of the run, if it is this process, accepts, validates and stores them in one commit.
    async fn append(&self, append: &Arc<AppendResults>) -> Result<ResultsAppended, StoreError> {
        let run_id = append.run_id;
        let live = self.deps.live.get(run_id);
        let stored = live.and_then(|live| live.inbox.put(Arc::clone(append)));
        let mut accept = Arc::clone(append);
        if let Some(stored) = stored {
            self.deps.notifier.wake(run_id);
            let stored = tokio::time::timeout(VALIDATION_TIMEOUT, stored).await;
            if let (Ok(Ok(())), Some((last, _))) = (stored, append.results.last()) {
                return Ok(ResultsAppended::Through(*last));
            }
            // The owner may have written the entry already.
            Arc::make_mut(&mut accept).audit.id = Uuid::now_v7();
        }
        let outcome = self.deps.store.write(accept).await?;
        if let ResultsAppended::Through(_) = outcome {
            self.deps.notifier.wake(run_id);
            // The owner is another process; a local owner was woken in memory.
            if !self.deps.live.contains(run_id) {
                self.deps.notifier.notify(Notification::Advanced(run_id));
            }
        }
        Ok(outcome)
    }

    /// Notes that the runner of a live run is alive. `None`: another call of the run already waits for the
    /// runner's answer to arrive.
    pub async fn note_heartbeat(&self, grant: &Grant) -> Result<Option<Heartbeating>, StoreError> {
        let heartbeat = Heartbeat {
            run_id: grant.run.id,
            attempt: grant.attempt,
            lease: self.deps.limits.append_lease,
        };
        let ask = || self.deps.store.write(heartbeat);
        let is_early = |outcome: &Heartbeating| *outcome == Heartbeating::NotAsync;
        self.once_answered(grant, ask, is_early).await
    }

    /// Waits until the results that the run has appended by now are validated, so that a later call sees their effects.
    /// False: the owner has not validated them in time.
    pub async fn await_judged(&self, grant: &Grant) -> Result<bool, StoreError> {
        let run_id = grant.run.id;
        if let Some(live) = self.deps.live.get(run_id)
            // Results in the runner's response are never appended, so there is no backlog.
            && live.streams(Instant::now())
        {
            return Ok(true);
        }
        let find = || self.deps.store.leases().find_backlog(run_id, grant.attempt);
        let Some(first) = find().await? else {
            return Ok(true);
        };
        let deadline = Instant::now() + VALIDATION_TIMEOUT;
        let mut now = Some(first);
        let mut pause = FIRST_PAUSE;
        while now.is_some_and(|now| !now.is_judged_to(first.accepted_through)) {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(pause).await;
            pause = LONGEST_PAUSE.min(pause * 2);
            now = find().await?;
        }
        Ok(true)
    }

    /// Repeats the call while the runner's response may be in transit. `None`: another call of the run already does so.
    async fn once_answered<T, F>(
        &self,
        grant: &Grant,
        ask: impl Fn() -> F,
        is_early: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let outcome = ask().await?;
        if !is_early(&outcome) {
            return Ok(Some(outcome));
        }
        let (run_id, store) = (grant.run.id, &self.deps.store);
        // Each waiting call queries the database, so a run has only one.
        let Ok(_permit) = self.deps.calls.begin(grant, CallKind::AnswerWait) else {
            return Ok(None);
        };
        let waiter = RunWaiter::of(&self.deps.notifier, run_id);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        // The runner may append before its 202 has reached and been stored by the owner.
        loop {
            let notifications = waiter.notifications();
            let mut notified = pin!(notifications.notified());
            // Enabled before the query, so that no notification is missed.
            notified.as_mut().enable();
            let tried_at = Instant::now();
            let outcome = ask().await?;
            if !is_early(&outcome)
                || tried_at >= deadline
                || store.runs().is_streaming(run_id, grant.attempt).await?
            {
                return Ok(Some(outcome));
            }
            let next = (tried_at + self.deps.limits.poll).min(deadline);
            // Polling covers lost notifications.
            let _ = tokio::time::timeout_at(next, notified).await;
        }
    }
}
