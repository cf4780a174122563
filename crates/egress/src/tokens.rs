//! Limiter of model tokens by key on this replica: reserved before a call, settled after it.
//!
//! A bucket refills continuously, up to the tokens of one minute. Calls are admitted while it is positive, so the calls
//! in flight can make it negative. It is in this crate for the reason of [`crate::limiter`].

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::limiter::LimitKey;
use crate::rate::MAX_KEYS;

/// Units of a token: milliseconds of a minute, so that a millisecond refills a whole number of units.
const TOKEN: i64 = 60_000;
/// Upper bound of one reservation and of one use, so that levels do not overflow.
const MAX_TOKENS: u64 = 1_000_000_000;

/// Token buckets by key, at most [`MAX_KEYS`]. Cheap to clone.
#[derive(Clone)]
pub struct KeyedTokens<K: LimitKey>(Arc<TokenBuckets<K>>);

struct TokenBuckets<K: LimitKey> {
    by_key: Mutex<HashMap<K, TokenBucket>>,
    /// Notified when a call gives tokens back.
    settled: Notify,
}

struct TokenBucket {
    per_minute: NonZeroU32,
    /// In units of [`TOKEN`].
    level: i64,
    /// Time of the level.
    at: Instant,
    /// Tokens of the calls in flight.
    reserved: u64,
}

/// State of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLevel {
    /// Tokens left; negative: calls in flight have taken more.
    pub available: i64,
    /// Tokens that the calls in flight have reserved.
    pub reserved: u64,
}

/// Tokens of one call. A drop without [`Self::settle`] gives all of them back.
pub struct TokenHold<K: LimitKey> {
    tokens: KeyedTokens<K>,
    key: K,
    reserved: u64,
    used: u64,
}

impl<K: LimitKey> Default for KeyedTokens<K> {
    fn default() -> Self {
        Self(Arc::new(TokenBuckets {
            by_key: Mutex::default(),
            settled: Notify::new(),
        }))
    }
}

impl<K: LimitKey> KeyedTokens<K> {
    /// Reserves tokens if the bucket is positive, else returns the time until it is.
    pub fn try_reserve(
        &self,
        key: &K,
        per_minute: NonZeroU32,
        tokens: u64,
    ) -> Result<TokenHold<K>, Duration> {
        let (now, reserved) = (Instant::now(), tokens.min(MAX_TOKENS));
        let mut buckets = self.buckets();
        if buckets.len() >= MAX_KEYS && !buckets.contains_key(key) {
            buckets.retain(|_, bucket| !bucket.is_idle(now));
        }
        // A key beyond the maximum has no bucket: an uncounted key is better than a refused one.
        if buckets.len() < MAX_KEYS || buckets.contains_key(key) {
            let new = || TokenBucket::full(per_minute, now);
            let bucket = buckets.entry(key.clone()).or_insert_with(new);
            bucket.refill(now);
            bucket.limit_to(per_minute);
            if let Some(wait) = bucket.wait() {
                return Err(wait);
            }
            bucket.reserved += reserved;
            bucket.add(-units(reserved));
        }
        Ok(TokenHold {
            tokens: self.clone(),
            key: key.clone(),
            reserved,
            used: 0,
        })
    }

    /// Like `try_reserve`, and waits until this time. Waiting calls have no order.
    pub async fn reserve_until(
        &self,
        key: &K,
        per_minute: NonZeroU32,
        tokens: u64,
        end: Instant,
    ) -> Result<TokenHold<K>, Duration> {
        loop {
            let mut settled = pin!(self.0.settled.notified());
            // Before the bucket is read: a settlement between the two must end the wait.
            settled.as_mut().enable();
            let now = Instant::now();
            let wait = match self.try_reserve(key, per_minute, tokens) {
                Ok(hold) => return Ok(hold),
                Err(wait) => wait,
            };
            let next = now + wait;
            // Only calls in flight can make the wait shorter than the refill.
            let is_fixed = self.level(key).is_none_or(|level| level.reserved == 0);
            if now >= end || (next > end && is_fixed) {
                return Err(wait);
            }
            // Both ends of the wait lead to another try.
            let _ = timeout_at(next.min(end), settled).await;
        }
    }

    /// State of a bucket. `None`: it is full and unused.
    pub fn level(&self, key: &K) -> Option<TokenLevel> {
        let mut buckets = self.buckets();
        let bucket = buckets.get_mut(key)?;
        bucket.refill(Instant::now());
        Some(TokenLevel {
            available: bucket.level.div_euclid(TOKEN),
            reserved: bucket.reserved,
        })
    }

    /// Removes full buckets without calls in flight.
    pub fn forget_idle(&self) {
        let now = Instant::now();
        self.buckets().retain(|_, bucket| !bucket.is_idle(now));
    }

    fn settle(&self, key: &K, reserved: u64, used: u64) {
        if let Some(bucket) = self.buckets().get_mut(key) {
            bucket.refill(Instant::now());
            bucket.reserved = bucket.reserved.saturating_sub(reserved);
            bucket.add(units(reserved) - units(used));
        }
        self.0.settled.notify_waiters();
    }

    // Consistent after a panic: each change is complete before the next call.
    fn buckets(&self) -> MutexGuard<'_, HashMap<K, TokenBucket>> {
        let buckets = self.0.by_key.lock();
        buckets.unwrap_or_else(PoisonError::into_inner)
    }
}

impl TokenBucket {
    fn full(per_minute: NonZeroU32, now: Instant) -> Self {
        let mut bucket = Self {
            per_minute,
            level: 0,
            at: now,
            reserved: 0,
        };
        bucket.level = bucket.max();
        bucket
    }

    fn max(&self) -> i64 {
        i64::from(self.per_minute.get()) * TOKEN
    }

    fn add(&mut self, units: i64) {
        self.level = self.level.saturating_add(units).min(self.max());
    }

    fn refill(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.at).as_millis();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        // Whole milliseconds only: the rest counts at the next refill.
        self.at += Duration::from_millis(passed.into());
        self.add(i64::from(passed).saturating_mul(self.per_minute.get().into()));
    }

    /// Applies a changed limit.
    fn limit_to(&mut self, per_minute: NonZeroU32) {
        self.per_minute = per_minute;
        self.add(0);
    }

    /// Time until the bucket is positive. `None`: it is.
    fn wait(&self) -> Option<Duration> {
        let missing = self.level.checked_neg().filter(|missing| *missing >= 0)?;
        let millis = missing / i64::from(self.per_minute.get()) + 1;
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(0)))
    }

    fn is_idle(&mut self, now: Instant) -> bool {
        self.refill(now);
        self.reserved == 0 && self.level >= self.max()
    }
}

fn units(tokens: u64) -> i64 {
    i64::try_from(tokens)
        .unwrap_or(i64::MAX)
        .saturating_mul(TOKEN)
}

impl<K: LimitKey> TokenHold<K> {
    /// Ends the call with its use in place of the reservation.
    pub fn settle(mut self, used: u64) {
        self.used = used.min(MAX_TOKENS);
    }
}

impl<K: LimitKey> Drop for TokenHold<K> {
    fn drop(&mut self) {
        self.tokens.settle(&self.key, self.reserved, self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIXTY: NonZeroU32 = NonZeroU32::MIN.saturating_add(59);

    fn available(tokens: &KeyedTokens<u8>, key: u8) -> i64 {
        tokens.level(&key).unwrap().available
    }

    #[tokio::test(start_paused = true)]
    async fn settles_reservations_and_refills_continuously() {
        let tokens = KeyedTokens::default();
        let reserve = |amount| tokens.try_reserve(&1, SIXTY, amount);
        let one = reserve(50).unwrap();
        // Admitted while positive, whatever the size.
        let two = reserve(40).unwrap();
        assert_eq!(available(&tokens, 1), -30);
        let wait = reserve(1).err().unwrap();
        assert_eq!(wait.as_secs(), 30);
        assert!(tokens.try_reserve(&2, SIXTY, 1).is_ok(), "another key");
        one.settle(5);
        assert_eq!(available(&tokens, 1), 15);
        drop(two);
        assert_eq!(available(&tokens, 1), 55);
        tokio::time::advance(Duration::from_secs(4)).await;
        assert_eq!(available(&tokens, 1), 59);
        tokio::time::advance(Duration::from_mins(1)).await;
        assert_eq!(available(&tokens, 1), 60);
        tokens.forget_idle();
        assert_eq!(tokens.level(&1), None);
    }

    #[tokio::test(start_paused = true)]
    async fn waits_for_refill_or_settlement() {
        let tokens = KeyedTokens::default();
        let begun = Instant::now();
        let reserve = |amount, seconds| {
            let end = begun + Duration::from_secs(seconds);
            tokens.reserve_until(&1, SIXTY, amount, end)
        };
        let one = reserve(90, 0).await.ok().unwrap();
        assert!(reserve(1, 10).await.is_err(), "the call is in flight");
        assert_eq!(begun.elapsed().as_secs(), 10);
        let (two, ()) = tokio::join!(reserve(1, 20), async { one.settle(75) });
        drop(two.ok().unwrap());
        // 60 - 75 + 10 seconds: the bucket is positive after 5 more.
        assert_eq!(begun.elapsed().as_secs(), 15);
        reserve(90, 20).await.ok().unwrap().settle(90);
        assert!(reserve(1, 30).await.is_err(), "the refill takes longer");
        assert_eq!(begun.elapsed().as_secs(), 15, "so there is no wait");
    }
}
