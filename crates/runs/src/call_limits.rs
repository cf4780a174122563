//! Limits of host calls: rate and concurrency of the runner of each run, on this replica.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dashmap::DashMap;
use protocol::id::RunId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::grant::Grant;
use clock::Clock;

/// Concurrent uploads and deletes of one run. Each holds a lock of its area or a reservation in it.
const UPLOADS: usize = 4;
/// Concurrent tool calls of one run. All runs share the permits of the tools.
const TOOL_CALLS: usize = 16;
/// Host calls of one run in flight, until their answers are read. The limit exceeds those below, so that
/// heartbeats, results and token renewals still pass.
const HOST_CALLS: usize = 64;
/// Concurrent model calls of one run. Each answer may be large.
const MODEL_CALLS: usize = 48;
/// Concurrent searches in knowledge bases of one run.
const RETRIEVALS: usize = 8;
/// Concurrent operations on the full catalog of one run. Further ones wait.
const CATALOG_WORKS: usize = 1;
/// Concurrent calls of one run that wait for the runner's answer. Each of them polls.
const WAITS: usize = 1;
/// Concurrent calls of one run that wait for answers of persons.
const INTERACTION_WAITS: usize = 8;
/// Concurrent calls of one run that wait for child runs: one for each that it may start.
const CHILD_WAITS: usize = 16;
/// Host calls of one run per second.
const CALLS_PER_SECOND: u32 = 500;
/// Maximum number of counted runs. Calls of further runs pass uncounted.
const RUNS: usize = 50_000;

/// Call counts by run, at most [`RUNS`].
#[derive(Default)]
pub(super) struct CallCounts {
    runs: DashMap<RunId, RunCalls>,
    /// Second of the last eviction.
    tidied: AtomicI64,
}

#[derive(Default)]
struct RunCalls {
    second: i64,
    calls: u32,
    host_calls: ConcurrencyLimit<HOST_CALLS>,
    uploads: ConcurrencyLimit<UPLOADS>,
    waits: ConcurrencyLimit<WAITS>,
    interaction_waits: ConcurrencyLimit<INTERACTION_WAITS>,
    child_waits: ConcurrencyLimit<CHILD_WAITS>,
    tool_calls: ConcurrencyLimit<TOOL_CALLS>,
    model_calls: ConcurrencyLimit<MODEL_CALLS>,
    retrievals: ConcurrencyLimit<RETRIEVALS>,
    catalog_works: ConcurrencyLimit<CATALOG_WORKS>,
}

/// Semaphore that is created on first use.
#[derive(Default)]
struct ConcurrencyLimit<const MAX: usize>(Option<Arc<Semaphore>>);

impl<const MAX: usize> ConcurrencyLimit<MAX> {
    fn take(&mut self) -> Option<OwnedSemaphorePermit> {
        self.all().try_acquire_owned().ok()
    }

    fn all(&mut self) -> Arc<Semaphore> {
        let all = || Arc::new(Semaphore::new(MAX));
        Arc::clone(self.0.get_or_insert_with(all))
    }

    fn is_unused(&self) -> bool {
        let all = self.0.as_ref();
        all.is_none_or(|all| all.available_permits() == MAX && Arc::strong_count(all) == 1)
    }
}

impl RunCalls {
    fn is_idle(&self, second: i64) -> bool {
        let is_quiet = self.host_calls.is_unused()
            && self.uploads.is_unused()
            && self.waits.is_unused()
            && self.interaction_waits.is_unused()
            && self.child_waits.is_unused()
            && self.tool_calls.is_unused()
            && self.model_calls.is_unused()
            && self.retrievals.is_unused()
            && self.catalog_works.is_unused();
        self.second != second && is_quiet
    }
}

impl CallCounts {
    /// Counts a call at `now`, in epoch milliseconds. False: the run exceeds the rate limit.
    pub(super) fn admit(&self, run: RunId, now: i64) -> bool {
        let second = now.div_euclid(1000);
        let counted = self.with(run, second, |count| {
            if count.second != second {
                // A fixed window: a run may double its rate across two seconds, which is tolerable here.
                (count.second, count.calls) = (second, 0);
            }
            count.calls = count.calls.saturating_add(1);
            count.calls <= CALLS_PER_SECOND
        });
        counted.unwrap_or(true)
    }

    /// Acquires a permit. `None`: all are taken.
    fn acquire<const MAX: usize>(
        &self,
        run: RunId,
        now: i64,
        of: impl FnOnce(&mut RunCalls) -> &mut ConcurrencyLimit<MAX>,
    ) -> Option<OwnedSemaphorePermit> {
        let permit = self.with(run, now.div_euclid(1000), |count| of(count).take());
        // The map is full. An uncounted run is better than a refused one.
        permit.unwrap_or_else(|| ConcurrencyLimit::<MAX>::default().take())
    }

    /// Removes runs without recent calls.
    pub(super) fn forget_idle(&self, now: i64) {
        let second = now.div_euclid(1000);
        self.runs.retain(|_, count| !count.is_idle(second));
    }

    /// `None`: the map is full.
    fn with<T>(
        &self,
        run: RunId,
        second: i64,
        change: impl FnOnce(&mut RunCalls) -> T,
    ) -> Option<T> {
        // The common case locks one shard, without the check of the size.
        if let Some(mut count) = self.runs.get_mut(&run) {
            return Some(change(&mut count));
        }
        // At most one pass a second: a flood of new runs must not scan the map for each call.
        if self.runs.len() >= RUNS && self.tidied.swap(second, Ordering::Relaxed) != second {
            self.runs.retain(|_, count| !count.is_idle(second));
        }
        if self.runs.len() >= RUNS {
            return None;
        }
        Some(change(&mut self.runs.entry(run).or_default()))
    }
}

/// Limits the calls of each run on this replica.
pub struct CallLimits {
    pub(super) counts: CallCounts,
    pub(super) clock: Clock,
}

impl CallLimits {
    /// Counts a host call. False: the run exceeds the rate limit.
    pub fn admit_call(&self, grant: &Grant) -> bool {
        self.counts.admit(grant.run.id, self.clock.now_ms())
    }

    /// Acquires a permit for a host call. `None`: too many are in flight.
    pub fn begin_call(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.acquire(grant, |count| &mut count.host_calls)
    }

    /// Acquires a permit for a call that waits for the runner's answer. `None`: too many wait.
    pub(super) fn begin_wait(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.acquire(grant, |count| &mut count.waits)
    }

    /// Removes runs without recent calls.
    pub(super) fn forget_idle(&self) {
        self.counts.forget_idle(self.clock.now_ms());
    }

    /// Acquires a permit for a tool call. `None`: too many are in flight.
    pub fn begin_tool_call(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.acquire(grant, |count| &mut count.tool_calls)
    }

    /// The same for a call that waits for the answer of a person.
    pub fn begin_interaction_wait(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.acquire(grant, |count| &mut count.interaction_waits)
    }

    /// The same for a call that waits for the end of a child run.
    pub fn begin_child_wait(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.acquire(grant, |count| &mut count.child_waits)
    }

    /// The same for a call of a model.
    pub fn begin_model_call(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.acquire(grant, |count| &mut count.model_calls)
    }

    /// The same for a search in a knowledge base.
    pub fn begin_retrieval(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.acquire(grant, |count| &mut count.retrievals)
    }

    /// Waits for the permit for an operation on the full catalog.
    pub async fn catalog_permit(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        let second = self.clock.now_ms().div_euclid(1000);
        let of_run = |count: &mut RunCalls| count.catalog_works.all();
        let all = self.counts.with(grant.run.id, second, of_run)?;
        all.acquire_owned().await.ok()
    }

    /// The same for an upload or a delete.
    pub fn begin_upload(&self, grant: &Grant) -> Option<OwnedSemaphorePermit> {
        self.acquire(grant, |count| &mut count.uploads)
    }

    fn acquire<const MAX: usize>(
        &self,
        grant: &Grant,
        of: impl FnOnce(&mut RunCalls) -> &mut ConcurrencyLimit<MAX>,
    ) -> Option<OwnedSemaphorePermit> {
        self.counts.acquire(grant.run.id, self.clock.now_ms(), of)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn limits_call_rate_of_each_run_separately() {
        let calls = CallCounts::default();
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
    fn limits_concurrent_uploads_and_keeps_active_runs() {
        let calls = CallCounts::default();
        let run = RunId(Uuid::nil());
        let mut permits: Vec<_> = (0..UPLOADS)
            .map(|_| {
                calls
                    .acquire(run, 1_000, |count| &mut count.uploads)
                    .unwrap()
            })
            .collect();
        calls.forget_idle(99_000);
        assert!(
            calls
                .acquire(run, 99_000, |count| &mut count.uploads)
                .is_none()
        );
        permits.pop();
        assert!(
            calls
                .acquire(run, 99_000, |count| &mut count.uploads)
                .is_some()
        );
        permits.clear();
        calls.forget_idle(99_000);
        assert!(calls.runs.is_empty());
    }

    #[test]
    fn bounds_counted_runs_and_evicts_idle_ones() {
        let calls = CallCounts::default();
        for n in 0..RUNS as u128 + 10 {
            assert!(calls.admit(RunId(Uuid::from_u128(n)), 1_000));
        }
        assert_eq!(calls.runs.len(), RUNS);
        assert!(calls.admit(RunId(Uuid::max()), 2_000));
        assert_eq!(calls.runs.len(), 1, "those of the second before went");
    }
}
