//! API keys of one provider, used round-robin. A rate-limited or refused key cools down.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use secrecy::SecretString;

/// Default cool-down of a refused or rate-limited key.
const REST: Duration = Duration::from_secs(10);

/// All keys of a provider; may be empty.
pub(super) struct ApiKeys {
    keys: Vec<SecretString>,
    turns: Mutex<KeyRotation>,
}

struct KeyRotation {
    next: usize,
    resting: Vec<Option<KeyCooldown>>,
}

/// The cool-down of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyCooldown {
    pub until: Instant,
    /// Reason of the refusal.
    pub because: &'static str,
}

impl ApiKeys {
    pub(super) fn new(keys: Vec<SecretString>) -> Self {
        let resting = vec![None; keys.len()];
        Self {
            keys,
            turns: Mutex::new(KeyRotation { next: 0, resting }),
        }
    }

    /// Maximum attempts of a call: one per key.
    pub(super) fn tries(&self) -> usize {
        self.keys.len().max(1)
    }

    /// The next key; keys in cool-down come last. `None`: the provider has no keys.
    pub(super) fn take(&self, now: Instant) -> Option<(usize, &SecretString)> {
        if self.keys.is_empty() {
            return None;
        }
        let mut turns = self.turns();
        let count = self.keys.len();
        let in_turn = (0..count).map(|step| (turns.next + step) % count);
        let is_awake = |n: &usize| turns.resting[*n].is_none_or(|rest| rest.until <= now);
        // If all keys cool down, try the next one: the cool-down is only a guess.
        let taken = in_turn.clone().find(is_awake).unwrap_or(turns.next % count);
        turns.next = (taken + 1) % count;
        Some((taken, &self.keys[taken]))
    }

    /// Starts the cool-down of a key.
    pub(super) fn rest(
        &self,
        key: usize,
        wait: Option<Duration>,
        because: &'static str,
        now: Instant,
    ) {
        // The provider's own wait time has priority.
        let until = now + wait.unwrap_or(REST);
        self.turns().resting[key] = Some(KeyCooldown { until, because });
    }

    /// Cool-down of each key, in configuration order.
    pub(super) fn resting(&self, now: Instant) -> Vec<Option<KeyCooldown>> {
        let turns = self.turns();
        let rests = |rest: &Option<KeyCooldown>| rest.filter(|rest| rest.until > now);
        turns.resting.iter().map(rests).collect()
    }

    /// All keys, in configuration order.
    pub(super) fn all(&self) -> &[SecretString] {
        &self.keys
    }

    // The state is consistent after any panic.
    fn turns(&self) -> std::sync::MutexGuard<'_, KeyRotation> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret as _;

    use super::*;

    #[test]
    fn rotates_keys_and_skips_cooling_ones() {
        let keys = ApiKeys::new(["a", "b", "c"].map(SecretString::from).to_vec());
        let now = Instant::now();
        let next = |at| keys.take(at).map(|(_, key)| key.expose_secret()).unwrap();
        assert_eq!(
            [next(now), next(now), next(now), next(now)],
            ["a", "b", "c", "a"]
        );
        keys.rest(1, Some(Duration::from_secs(5)), "busy", now);
        let resting = keys.resting(now);
        assert!(resting[0].is_none() && resting[1].is_some_and(|rest| rest.because == "busy"));
        assert_eq!([next(now), next(now)], ["c", "a"]);
        let later = now + Duration::from_secs(5);
        assert_eq!(next(later), "b");
        assert_eq!(keys.resting(later), [None, None, None]);
        for key in 0..3 {
            keys.rest(key, None, "busy", later);
        }
        assert_eq!(next(later), "c", "when all rest, the one whose turn it is");
        assert!(ApiKeys::new(Vec::new()).take(now).is_none());
    }
}
