//! Rate limiter by key on this replica.
//!
//! It is in this crate for the reason of [`crate::limiter`].

use std::hash::Hash;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::{DashMapStateStore, ShrinkableKeyedStateStore};
use governor::state::{InMemoryState, NotKeyed, StateStore};
use governor::{Quota, RateLimiter};

/// Maximum number of counted keys. Further keys pass uncounted.
pub(crate) const MAX_KEYS: usize = 50_000;

/// Calls in a minute, and at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallRate {
    pub per_minute: NonZeroU32,
    pub burst: NonZeroU32,
}

impl CallRate {
    pub fn quota(self) -> Quota {
        Quota::per_minute(self.per_minute).allow_burst(self.burst)
    }
}

/// Rate limiter with a bucket for each key, at most [`MAX_KEYS`].
pub struct KeyedRate<K: Clone + Eq + Hash, C: Clock = DefaultClock> {
    limiter: RateLimiter<K, BoundedBuckets<K>, C, NoOpMiddleware<C::Instant>>,
    /// Limits passes over a full map.
    evictions: RateLimiter<NotKeyed, InMemoryState, C, NoOpMiddleware<C::Instant>>,
}

impl<K: Clone + Eq + Hash, C: Clock + Clone> KeyedRate<K, C> {
    pub fn new(quota: Quota, clock: C) -> Self {
        Self {
            limiter: RateLimiter::new(
                quota,
                BoundedBuckets(DashMapStateStore::default()),
                clock.clone(),
            ),
            evictions: RateLimiter::direct_with_clock(Quota::per_second(NonZeroU32::MIN), clock),
        }
    }

    /// Admits one call, or returns the time to wait.
    pub fn admit(&self, key: &K) -> Result<(), Duration> {
        // At most one pass a second: a flood of new keys must not scan the map for each call.
        if self.limiter.len() >= MAX_KEYS && self.evictions.check().is_ok() {
            self.limiter.retain_recent();
        }
        let checked = self.limiter.check_key(key);
        checked.map_err(|early| early.wait_time_from(self.limiter.clock().now()))
    }

    /// Removes buckets without recent calls.
    pub fn forget_idle(&self) {
        self.limiter.retain_recent();
        self.limiter.shrink_to_fit();
    }

    /// True if no key has a bucket.
    pub fn is_idle(&self) -> bool {
        self.limiter.is_empty()
    }
}

/// Buckets by key. A key beyond [`MAX_KEYS`] has no bucket: an uncounted key is better than a refused one.
struct BoundedBuckets<K: Clone + Eq + Hash>(DashMapStateStore<K>);

impl<K: Clone + Eq + Hash> StateStore for BoundedBuckets<K> {
    type Key = K;

    fn measure_and_replace<T, F, E>(&self, key: &K, measure: F) -> Result<T, E>
    where
        F: Fn(Option<Nanos>) -> Result<(T, Nanos), E>,
    {
        if self.0.len() >= MAX_KEYS && !self.0.contains_key(key) {
            return measure(None).map(|(passed, _)| passed);
        }
        self.0.measure_and_replace(key, measure)
    }
}

impl<K: Clone + Eq + Hash> ShrinkableKeyedStateStore<K> for BoundedBuckets<K> {
    fn retain_recent(&self, drop_below: Nanos) {
        self.0.retain_recent(drop_below);
    }

    fn shrink_to_fit(&self) {
        self.0.shrink_to_fit();
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use governor::clock::FakeRelativeClock;

    use super::*;

    #[test]
    fn bounds_counted_keys_and_evicts_idle_ones() {
        let clock = FakeRelativeClock::default();
        let rate = KeyedRate::new(Quota::per_second(NonZeroU32::MIN), clock.clone());
        for key in 0..MAX_KEYS + 10 {
            assert_eq!(rate.admit(&key), Ok(()));
        }
        assert_eq!(rate.limiter.len(), MAX_KEYS);
        assert!(rate.admit(&0).is_err(), "a counted key stays limited");
        clock.advance(Duration::from_secs(2));
        assert_eq!(rate.admit(&MAX_KEYS), Ok(()));
        assert_eq!(rate.limiter.len(), 1, "idle keys were removed");
    }
}
