//! Limiter of concurrent use: calls, connections and bytes in memory, in total and for each key.
//!
//! It is in this crate because tools, runs and the API share it, and this is the lowest crate of all three.
//! A queue without keys is a `tokio::sync::Semaphore`.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Error of a full limiter, as a caller receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRefusal {
    /// Code of the limit: `details.reason`.
    pub reason: &'static str,
    pub message: &'static str,
    pub retry_after_seconds: u32,
}

impl LimitRefusal {
    /// A refusal after which a retry may succeed in one second.
    pub const fn new(reason: &'static str, message: &'static str) -> Self {
        Self {
            reason,
            message,
            retry_after_seconds: 1,
        }
    }

    /// The limit of this maximum, with this refusal.
    pub const fn at(self, max: usize) -> LimitSpec {
        LimitSpec { max, refusal: self }
    }
}

/// Maximum weight in use, and the refusal beyond it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    pub max: usize,
    pub refusal: LimitRefusal,
}

/// A key that a permit is charged to, and the maximum of all permits of that key.
#[derive(Clone, Debug)]
pub struct Share<K> {
    pub key: K,
    pub limit: LimitSpec,
}

/// Key of a limiter.
pub trait LimitKey: Clone + Eq + Hash {}

impl<K: Clone + Eq + Hash> LimitKey for K {}

/// Weights in use, in total and by key. Keys without permits occupy no memory. Cheap to clone.
#[derive(Clone)]
pub struct KeyedLimiter<K: LimitKey>(Arc<LimiterShared<K>>);

struct LimiterShared<K: LimitKey> {
    /// `None`: only the shares limit.
    total: Option<LimitSpec>,
    state: Mutex<LimiterState<K>>,
}

struct LimiterState<K: LimitKey> {
    used: usize,
    by_key: HashMap<K, usize>,
    /// Queue in arrival order. Entries over a share are skipped.
    waiting: BTreeMap<u64, QueuedPermit<K>>,
    tickets: u64,
}

struct QueuedPermit<K: LimitKey> {
    /// Empty while it is queued.
    permit: Permit<K>,
    ready: oneshot::Sender<Permit<K>>,
}

/// A queue entry, removed if the caller is dropped.
struct QueueTicket<'a, K: LimitKey> {
    limiter: &'a KeyedLimiter<K>,
    number: u64,
}

/// Weight in use, returned on drop.
pub struct Permit<K: LimitKey> {
    limiter: KeyedLimiter<K>,
    shares: Vec<Share<K>>,
    weight: usize,
}

impl<K: LimitKey> KeyedLimiter<K> {
    pub fn new(total: LimitSpec) -> Self {
        Self::with_total(Some(total))
    }

    /// A limiter of shares, without a total.
    pub fn of_shares() -> Self {
        Self::with_total(None)
    }

    fn with_total(total: Option<LimitSpec>) -> Self {
        let state = LimiterState {
            used: 0,
            by_key: HashMap::new(),
            waiting: BTreeMap::new(),
            tickets: 0,
        };
        Self(Arc::new(LimiterShared {
            total,
            state: Mutex::new(state),
        }))
    }

    /// Weight in use.
    pub fn used(&self) -> usize {
        self.state().used
    }

    /// Callers in the queue that wait for this key.
    pub fn queued_for(&self, key: &K) -> usize {
        let state = self.state();
        let waits = |queued: &&QueuedPermit<K>| {
            let mut shares = queued.permit.shares.iter();
            shares.any(|share| share.key == *key)
        };
        state.waiting.values().filter(waits).count()
    }

    /// An empty permit, to be grown.
    pub fn empty_permit(&self, shares: impl Into<Vec<Share<K>>>) -> Permit<K> {
        Permit {
            limiter: self.clone(),
            shares: shares.into(),
            weight: 0,
        }
    }

    /// Takes a permit of this weight, or returns the limit that is reached.
    pub fn try_acquire(
        &self,
        shares: impl Into<Vec<Share<K>>>,
        weight: usize,
    ) -> Result<Permit<K>, LimitSpec> {
        let mut permit = self.empty_permit(shares);
        permit.grow(weight)?;
        Ok(permit)
    }

    /// Takes a permit of weight 1, in order of arrival. `None` is not returned while the limiter exists.
    pub async fn acquire(&self, shares: impl Into<Vec<Share<K>>>) -> Option<Permit<K>> {
        let mut permit = self.empty_permit(shares);
        let (number, ready) = {
            let mut state = self.state();
            if self.check(&state, &permit.shares, 1).is_ok() {
                state.add(&permit.shares, 1);
                permit.weight = 1;
                return Some(permit);
            }
            let (ready, receiver) = oneshot::channel();
            // Tickets order the queue: the map iterates in order of arrival.
            state.tickets += 1;
            let number = state.tickets;
            state.waiting.insert(number, QueuedPermit { permit, ready });
            (number, receiver)
        };
        let _ticket = QueueTicket {
            limiter: self,
            number,
        };
        ready.await.ok()
    }

    /// Like `acquire`, until this time. Then returns the limit that is reached.
    pub async fn acquire_until(
        &self,
        shares: impl Into<Vec<Share<K>>>,
        end: Instant,
    ) -> Result<Permit<K>, LimitSpec> {
        let shares = shares.into();
        match timeout_at(end, self.acquire(shares.clone())).await {
            Ok(Some(permit)) => Ok(permit),
            Ok(None) | Err(_) => self.try_acquire(shares, 1),
        }
    }

    fn check(
        &self,
        state: &LimiterState<K>,
        shares: &[Share<K>],
        more: usize,
    ) -> Result<(), LimitSpec> {
        let is_over = |used: usize, limit: LimitSpec| used.saturating_add(more) > limit.max;
        let of_key = |key: &K| state.by_key.get(key).copied().unwrap_or(0);
        let share = shares
            .iter()
            .find(|share| is_over(of_key(&share.key), share.limit))
            .map(|share| share.limit);
        let total = || self.0.total.filter(|total| is_over(state.used, *total));
        share.or_else(total).map_or(Ok(()), Err)
    }

    fn release(&self, shares: &[Share<K>], less: usize) {
        // A permit without a receiver is dropped after the lock is released, since its drop takes the lock.
        let mut unclaimed = Vec::new();
        let mut state = self.state();
        state.remove(shares, less);
        let waiting: Vec<u64> = state.waiting.keys().copied().collect();
        for number in waiting {
            let fits = state
                .waiting
                .get(&number)
                .is_some_and(|queued| self.check(&state, &queued.permit.shares, 1).is_ok());
            if fits && let Some(mut queued) = state.waiting.remove(&number) {
                state.add(&queued.permit.shares, 1);
                queued.permit.weight = 1;
                unclaimed.extend(queued.ready.send(queued.permit).err());
            }
        }
        drop(state);
        drop(unclaimed);
    }

    // Counts are consistent after any panic.
    fn state(&self) -> MutexGuard<'_, LimiterState<K>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: LimitKey> LimiterState<K> {
    fn add(&mut self, shares: &[Share<K>], more: usize) {
        self.used = self.used.saturating_add(more);
        for share in shares {
            let used = self.by_key.entry(share.key.clone()).or_default();
            *used = used.saturating_add(more);
        }
    }

    fn remove(&mut self, shares: &[Share<K>], less: usize) {
        self.used = self.used.saturating_sub(less);
        for share in shares {
            if let Some(used) = self.by_key.get_mut(&share.key) {
                *used = used.saturating_sub(less);
                // Removed at 0, so that the map has active keys only.
                if *used == 0 {
                    self.by_key.remove(&share.key);
                }
            }
        }
    }
}

impl<K: LimitKey> Permit<K> {
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// Grows to this weight, or returns the limit that is reached and leaves the permit as it is.
    pub fn grow(&mut self, weight: usize) -> Result<(), LimitSpec> {
        let more = weight.saturating_sub(self.weight);
        if more == 0 {
            return Ok(());
        }
        // One lock for all checks: separate checks could all pass and exceed a limit together.
        let mut state = self.limiter.state();
        self.limiter.check(&state, &self.shares, more)?;
        state.add(&self.shares, more);
        self.weight = weight;
        Ok(())
    }

    /// Grows to this weight, even beyond the limits.
    pub fn grow_unchecked(&mut self, weight: usize) {
        let more = weight.saturating_sub(self.weight);
        self.limiter.state().add(&self.shares, more);
        self.weight += more;
    }

    /// Returns the excess over this weight.
    pub fn shrink(&mut self, weight: usize) {
        let less = self.weight.saturating_sub(weight);
        if less > 0 {
            self.weight = weight;
            self.limiter.release(&self.shares, less);
        }
    }
}

impl<K: LimitKey> Drop for Permit<K> {
    fn drop(&mut self) {
        self.shrink(0);
    }
}

impl<K: LimitKey> Drop for QueueTicket<'_, K> {
    fn drop(&mut self) {
        // A permit that was already sent is dropped with the channel, which returns it.
        self.limiter.state().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    const TOTAL: LimitSpec = LimitRefusal::new("total", "").at(4);
    const SHARE: LimitSpec = LimitRefusal::new("share", "").at(3);

    fn is_unused(limiter: &KeyedLimiter<&str>) -> bool {
        let state = limiter.state();
        state.used == 0 && state.by_key.is_empty() && state.waiting.is_empty()
    }

    fn share(key: &'static str) -> [Share<&'static str>; 1] {
        [Share { key, limit: SHARE }]
    }

    #[test]
    fn limits_shares_before_total_and_drops_idle_keys() {
        let limiter = KeyedLimiter::new(TOTAL);
        let mut one = limiter.try_acquire(share("one"), 2).unwrap();
        assert_eq!(one.grow(4), Err(SHARE));
        assert_eq!(one.weight(), 2);
        assert_eq!(one.grow(3), Ok(()));
        let other = limiter.try_acquire(share("other"), 1).unwrap();
        let refused = limiter.try_acquire(share("other"), 1);
        assert_eq!(refused.err(), Some(TOTAL));
        one.grow_unchecked(10);
        assert_eq!(limiter.used(), 11);
        one.shrink(1);
        assert_eq!(limiter.used(), 2);
        drop((one, other));
        assert!(is_unused(&limiter));
    }

    #[tokio::test]
    async fn queued_callers_follow_in_order_and_skip_full_shares() {
        let limiter = KeyedLimiter::new(TOTAL);
        let mut one = limiter.try_acquire(share("one"), 3).unwrap();
        let other = limiter.try_acquire(share("other"), 1).unwrap();
        let mut next_of_one = Box::pin(limiter.acquire(share("one")));
        let mut third = Box::pin(limiter.acquire(share("third")));
        let mut left = Box::pin(limiter.acquire(share("third")));
        assert!(next_of_one.as_mut().now_or_never().is_none());
        assert_eq!(
            (limiter.queued_for(&"one"), limiter.queued_for(&"third")),
            (1, 0)
        );
        assert!(third.as_mut().now_or_never().is_none());
        assert!(left.as_mut().now_or_never().is_none());
        drop(left);
        drop(other);
        let third = third.now_or_never().flatten();
        assert!(third.is_some(), "the share of the first caller is full");
        one.shrink(2);
        drop(next_of_one);
        assert_eq!(limiter.used(), 3, "the unclaimed permit was returned");
        let end = Instant::now();
        let fourth = limiter.acquire_until(share("third"), end).await;
        assert_eq!(limiter.used(), 4);
        let refused = limiter.acquire_until(share("one"), end).await;
        assert_eq!(refused.err(), Some(TOTAL));
        drop((one, third, fourth));
        assert!(is_unused(&limiter));
    }
}
