//! Replay protection by `webhook-id`, in bounded memory.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::digest;

use crate::signature::TOLERANCE_SECONDS;

/// About 4 MiB when full.
const CAPACITY: usize = 65_536;

/// Ids of recent requests. When full, the oldest ids are evicted and every request as old as they are is
/// rejected: a gateway's own requests are seconds old.
#[derive(Debug)]
pub(super) struct SeenIds {
    capacity: usize,
    ids: Mutex<RequestIds>,
}

type Fingerprint = [u8; 16];

#[derive(Debug)]
struct RequestIds {
    all: HashSet<Fingerprint>,
    by_time: BTreeMap<i64, Vec<Fingerprint>>,
    /// Requests signed at or before this second are rejected.
    forgotten_until: i64,
}

impl Default for SeenIds {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl SeenIds {
    fn new(capacity: usize) -> Self {
        let ids = RequestIds {
            all: HashSet::new(),
            by_time: BTreeMap::new(),
            forgotten_until: i64::MIN,
        };
        Self {
            capacity,
            ids: Mutex::new(ids),
        }
    }

    /// Records an id; false for a repeated or evicted one. Call it after the signature check, so that unsigned
    /// requests cannot fill the memory.
    pub(super) fn insert(&self, id: &str, timestamp: i64, now_seconds: i64) -> bool {
        let fingerprint = fingerprint(id);
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = now_seconds.saturating_sub_unsigned(TOLERANCE_SECONDS);
        // Ids outside of the tolerance cannot pass the timestamp check, so they need no memory.
        while ids
            .by_time
            .first_key_value()
            .is_some_and(|(second, _)| *second < oldest)
        {
            ids.forget_oldest_second();
        }
        // An evicted id could be replayed, so everything as old is rejected.
        if timestamp <= ids.forgotten_until || !ids.all.insert(fingerprint) {
            return false;
        }
        ids.by_time.entry(timestamp).or_default().push(fingerprint);
        if ids.all.len() > self.capacity
            && let Some(second) = ids.forget_oldest_second()
        {
            ids.forgotten_until = ids.forgotten_until.max(second);
        }
        true
    }
}

impl RequestIds {
    fn forget_oldest_second(&mut self) -> Option<i64> {
        let (second, forgotten) = self.by_time.pop_first()?;
        for id in forgotten {
            self.all.remove(&id);
        }
        Some(second)
    }
}

fn fingerprint(id: &str) -> Fingerprint {
    let digest = digest::digest(&digest::SHA256, id.as_bytes());
    let mut fingerprint = Fingerprint::default();
    for (to, from) in fingerprint.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    fingerprint
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_replayed_ids_within_signature_lifetime() {
        let seen = SeenIds::new(8);
        assert!(seen.insert("a", 1000, 1000));
        assert!(!seen.insert("a", 1000, 1000));
        assert!(
            !seen.insert("a", 1300, 1300),
            "signed anew, it is still the same id"
        );
        assert!(seen.insert("b", 1301, 1301));
        assert!(seen.insert("a", 1301, 1301));
    }

    #[test]
    fn rejects_requests_older_than_evicted_ids() {
        let seen = SeenIds::new(3);
        for (id, timestamp) in [("a", 1000), ("b", 1000), ("c", 1001), ("d", 1002)] {
            assert!(seen.insert(id, timestamp, 1002), "{id}");
        }
        assert_eq!(seen.ids.lock().unwrap().all.len(), 2);
        for (id, timestamp) in [("a", 1000), ("new", 1000), ("c", 1001), ("d", 1002)] {
            assert!(!seen.insert(id, timestamp, 1002), "{id}");
        }
        assert!(seen.insert("new", 1001, 1002));
    }
}
