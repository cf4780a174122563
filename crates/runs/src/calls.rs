//! What the runner of one run may do at a time on this replica, whether the run is driven here or
//! elsewhere: so many calls in a second, so many uploads at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dashmap::DashMap;
use protocol::id::RunId;
use store::{AuditOutcome, FinishToolCall, SettleUsage};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::Runs;
use crate::grant::Grant;

/// Uploads and deletes of one run at once: each holds a lock of its area, or reserves room in it.
const UPLOADS: usize = 4;
/// Calls of tools of one run at once: the places for them are there for all runs.
const TOOL_CALLS: usize = 16;
/// Host calls of one run in flight, each until its answer is read. It leaves room beside the calls below for those that
/// keep a run alive: heartbeats, results, tokens.
const HOST_CALLS: usize = 64;
/// Calls of models of one run at once: the answer to each may be large.
const MODEL_CALLS: usize = 48;
/// Searches in knowledge bases of one run at once.
const RETRIEVALS: usize = 8;
/// Works on the whole catalog of one run at once; the next one waits.
const CATALOG_WORKS: usize = 1;
/// Calls of one run that wait at once for its runner's answer to be known: each of them looks again and again.
const WAITS: usize = 1;
/// Calls of one run that wait at once for answers of persons.
const INTERACTION_WAITS: usize = 8;
/// Calls of one run that wait at once for child runs: one for each that it may start.
const CHILD_WAITS: usize = 16;
/// Host calls of one run in one second.
const CALLS_PER_SECOND: u32 = 500;
/// Runs that are counted at a time. More have not called within one second in practice; what comes on
/// top of them passes uncounted.
const RUNS: usize = 50_000;

/// The counts of the runs that have called of late.
#[derive(Default)]
pub(super) struct Calls {
    runs: DashMap<RunId, Count>,
    /// The second in which room was last made.
    tidied: AtomicI64,
}

#[derive(Default)]
struct Count {
    second: i64,
    calls: u32,
    host_calls: Places<HOST_CALLS>,
    uploads: Places<UPLOADS>,
    waits: Places<WAITS>,
    interaction_waits: Places<INTERACTION_WAITS>,
    child_waits: Places<CHILD_WAITS>,
    tool_calls: Places<TOOL_CALLS>,
    model_calls: Places<MODEL_CALLS>,
    retrievals: Places<RETRIEVALS>,
    catalog_works: Places<CATALOG_WORKS>,
}

/// Room for so many at once, made when it is first needed.
#[derive(Default)]
struct Places<const MOST: usize>(Option<Arc<Semaphore>>);

impl<const MOST: usize> Places<MOST> {
    fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        self.all().try_acquire_owned().ok()
    }

    fn all(&mut self) -> Arc<Semaphore> {
        let all = || Arc::new(Semaphore::new(MOST));
        Arc::clone(self.0.get_or_insert_with(all))
    }

    fn are_free(&self) -> bool {
        let all = self.0.as_ref();
        all.is_none_or(|all| all.available_permits() == MOST && Arc::strong_count(all) == 1)
    }
}

impl Count {
    fn is_idle(&self, second: i64) -> bool {
        let is_quiet = self.host_calls.are_free()
            && self.uploads.are_free()
            && self.waits.are_free()
            && self.interaction_waits.are_free()
            && self.child_waits.are_free()
            && self.tool_calls.are_free()
            && self.model_calls.are_free()
            && self.retrievals.are_free()
            && self.catalog_works.are_free();
        self.second != second && is_quiet
    }
}

impl Calls {
    /// Counts a call at `now`, in epoch milliseconds; false when the run calls too often.
    pub(super) fn admit(&self, run: RunId, now: i64) -> bool {
        let second = now.div_euclid(1000);
        let counted = self.with(run, second, |count| {
            if count.second != second {
                (count.second, count.calls) = (second, 0);
            }
            count.calls = count.calls.saturating_add(1);
            count.calls <= CALLS_PER_SECOND
        });
        counted.unwrap_or(true)
    }

    /// Room for one more call that waits, until it is dropped; `None`: as many wait as may.
    pub(super) fn begin_wait(&self, run: RunId, now: i64) -> Option<OwnedSemaphorePermit> {
        self.place(run, now, |count| &mut count.waits)
    }

    /// One more place of these, until it is dropped; `None`: all are taken.
    fn place<const MOST: usize>(
        &self,
        run: RunId,
        now: i64,
        of: impl FnOnce(&mut Count) -> &mut Places<MOST>,
    ) -> Option<OwnedSemaphorePermit> {
        let room = self.with(run, now.div_euclid(1000), |count| of(count).take());
        room.unwrap_or_else(|| Places::<MOST>::default().take())
    }

    /// Forgets who is not counted any more.
    pub(super) fn forget_idle(&self, now: i64) {
        let second = now.div_euclid(1000);
        self.runs.retain(|_, count| !count.is_idle(second));
    }

    /// `None`: there is no room to count it.
    fn with<T>(&self, run: RunId, second: i64, change: impl FnOnce(&mut Count) -> T) -> Option<T> {
        if let Some(mut count) = self.runs.get_mut(&run) {
            return Some(change(&mut count));
        }
        if self.runs.len() >= RUNS && self.tidied.swap(second, Ordering::Relaxed) != second {
            self.runs.retain(|_, count| !count.is_idle(second));
        }
        if self.runs.len() >= RUNS {
            return None;
        }
        Some(change(&mut self.runs.entry(run).or_default()))
    }
}

impl Runs {
    /// Counts a host call of a run on this replica; false when it calls too often.
    pub fn admit_call(&self, grant: &Grant) -> bool {
        self.0.calls.admit(grant.run.id, self.0.clock.now_ms())
    }

    /// Room for a host call of a run on this replica, until it is dropped; `None`: as many are in flight as may be.
    pub fn begin_call(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.place(grant, |count| &mut count.host_calls)
    }

    /// Records what came of a call and what it used, whether anybody waits for it or not.
    pub fn record_later(&self, outcome: AuditOutcome, used: Option<SettleUsage>) {
        let store = self.0.store.clone();
        self.0.tasks.spawn(async move {
            let recorded = async {
                store.audit_log().audit_outcome(outcome).await?;
                match used {
                    Some(used) => store.write_later(used).await,
                    None => Ok(()),
                }
            };
            if let Err(error) = recorded.await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the outcome of a call was not recorded");
            }
        });
    }

    /// Writes what came of a call of a tool, whether anybody waits for it or not.
    pub fn finish_later(&self, finish: FinishToolCall, then: impl FnOnce() + Send + 'static) {
        let store = self.0.store.clone();
        self.0.tasks.spawn(async move {
            if let Err(error) = store.write(finish).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the outcome of a call of a tool was not written");
            }
            then();
        });
    }

    /// Room for a call of a tool of a run on this replica, until it is dropped; `None`: as many go on as may.
    pub fn begin_tool_call(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.place(grant, |count| &mut count.tool_calls)
    }

    /// The same for a call that waits for the answer of a person.
    pub fn begin_interaction_wait(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.place(grant, |count| &mut count.interaction_waits)
    }

    /// The same for a call that waits for the end of a child run.
    pub fn begin_child_wait(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.place(grant, |count| &mut count.child_waits)
    }

    /// The same for a call of a model.
    pub fn begin_model_call(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.place(grant, |count| &mut count.model_calls)
    }

    /// The same for a search in a knowledge base.
    pub fn begin_retrieval(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.place(grant, |count| &mut count.retrievals)
    }

    /// The turn of a work on the whole catalog of a run.
    pub async fn catalog_turn(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        let second = self.0.clock.now_ms().div_euclid(1000);
        let of_run = |count: &mut Count| count.catalog_works.all();
        let all = self.0.calls.with(grant.run.id, second, of_run)?;
        all.acquire_owned().await.ok()
    }

    /// The same for an upload or a delete.
    pub fn begin_upload(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.place(grant, |count| &mut count.uploads)
    }

    fn place<const MOST: usize>(
        &self,
        grant: &Grant,
        of: impl FnOnce(&mut Count) -> &mut Places<MOST>,
    ) -> Option<OwnedSemaphorePermit> {
        self.0.calls.place(grant.run.id, self.0.clock.now_ms(), of)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_run_calls_so_often_in_a_second_and_its_neighbour_does_too() {
        let calls = Calls::default();
        let [one, other] = [1, 2].map(|n| RunId(Uuid::from_u128(n)));
        assert!((0..500).all(|call| calls.admit(one, 7_000 + call)));
        assert!(!calls.admit(one, 7_999));
        assert!(calls.admit(other, 7_999));
        calls.forget_idle(7_999);
        assert!(!calls.admit(one, 7_999), "who is counted is remembered");
        assert!(calls.admit(one, 8_000), "the next second counts anew");
        calls.forget_idle(9_000);
        assert!(calls.runs.is_empty());
    }

    #[test]
    fn uploads_that_go_on_are_remembered_and_no_more_than_four() {
        let calls = Calls::default();
        let run = RunId(Uuid::nil());
        let mut places: Vec<_> = (0..UPLOADS)
            .map(|_| calls.place(run, 1_000, |count| &mut count.uploads).unwrap())
            .collect();
        calls.forget_idle(99_000);
        assert!(
            calls
                .place(run, 99_000, |count| &mut count.uploads)
                .is_none()
        );
        places.pop();
        assert!(
            calls
                .place(run, 99_000, |count| &mut count.uploads)
                .is_some()
        );
        places.clear();
        calls.forget_idle(99_000);
        assert!(calls.runs.is_empty());
    }

    #[test]
    fn no_more_runs_are_counted_than_there_is_room_for() {
        let calls = Calls::default();
        for n in 0..RUNS as u128 + 10 {
            assert!(calls.admit(RunId(Uuid::from_u128(n)), 1_000));
        }
        assert_eq!(calls.runs.len(), RUNS);
        assert!(calls.admit(RunId(Uuid::max()), 2_000));
        assert_eq!(calls.runs.len(), 1, "those of the second before went");
    }
}
