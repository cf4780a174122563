//! Last use of API keys. Uses are recorded in batches by a task of their own, so no request waits for a write.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::id::ApiKeyId;
use store::{ApiKeyRecord, KEY_USE_RESOLUTION_MS, RecordKeyUses};
use tokio::sync::Notify;

use crate::deps::RunDeps;

/// Maximum keys that wait for the write. When full, the use is dropped, and the key's next request notes it again.
const MAX_WAITING: usize = 1024;
/// Maximum keys per transaction.
const BATCH: usize = 64;
/// Pause before a write, in which further keys join it. Uses in the last pause before a stop are lost.
const PAUSE: Duration = Duration::from_secs(1);

/// Uses of API keys that wait for their write.
pub struct KeyUses {
    deps: Arc<RunDeps>,
    /// Each key with the time of its use.
    waiting: Mutex<BTreeMap<ApiKeyId, i64>>,
    noted: Notify,
}

impl KeyUses {
    pub(super) fn new(deps: Arc<RunDeps>) -> Self {
        Self {
            deps,
            waiting: Mutex::default(),
            noted: Notify::new(),
        }
    }

    /// Notes the use of a key at `at`, in epoch milliseconds. `key`: as read for this request. The recorded use is
    /// part of it, so most requests return here at once.
    pub fn note(&self, key: &ApiKeyRecord, at: i64) {
        // The time is coarse, so a busy key costs one write per resolution.
        if is_due(key.last_used_at, at) && add(&mut self.waiting(), key.id, at) {
            self.noted.notify_one();
        }
    }

    /// Records noted uses until the process stops.
    pub async fn keep_recording(&self) {
        let recording = async {
            loop {
                self.noted.notified().await;
                tokio::time::sleep(PAUSE).await;
                self.record().await;
            }
        };
        self.deps.until_closing(recording).await;
    }

    async fn record(&self) {
        loop {
            let keys = self.next_batch();
            if keys.is_empty() {
                return;
            }
            let written = self
                .deps
                .store
                .write(RecordKeyUses { keys: keys.clone() })
                .await;
            if let Err(error) = written {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    keys = keys.len(),
                    "the last use of API keys could not be recorded, their next requests record it"
                );
            }
            // Removed after the write: a request in between must not queue the key again.
            self.waiting().retain(|key, _| !keys.contains_key(key));
        }
    }

    fn next_batch(&self) -> BTreeMap<ApiKeyId, i64> {
        let waiting = self.waiting();
        let batch = waiting.iter().take(BATCH);
        batch.map(|(key, at)| (*key, *at)).collect()
    }

    // The map is consistent after any panic.
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<ApiKeyId, i64>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// True when a use at `at` must be written, after the recorded one.
fn is_due(recorded: Option<i64>, at: i64) -> bool {
    recorded.is_none_or(|recorded| at.saturating_sub(recorded) >= KEY_USE_RESOLUTION_MS)
}

/// Adds a use. False: the key waits already, or too many do.
fn add(waiting: &mut BTreeMap<ApiKeyId, i64>, key: ApiKeyId, at: i64) -> bool {
    if waiting.len() >= MAX_WAITING || waiting.contains_key(&key) {
        return false;
    }
    waiting.insert(key, at);
    true
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn writes_a_use_once_a_minute() {
        for (recorded, at, expected) in [
            (None, 5, true),
            (Some(0), KEY_USE_RESOLUTION_MS - 1, false),
            (Some(0), KEY_USE_RESOLUTION_MS, true),
            (Some(9_000), 5_000, false),
        ] {
            assert_eq!(is_due(recorded, at), expected, "{recorded:?} {at}");
        }
    }

    #[test]
    fn waiting_uses_are_bounded() {
        let mut waiting = BTreeMap::new();
        let key = |number: usize| ApiKeyId(Uuid::from_u128(number as u128));
        assert!(add(&mut waiting, key(0), 1));
        assert!(!add(&mut waiting, key(0), 2), "it waits already");
        for number in 1..MAX_WAITING {
            assert!(add(&mut waiting, key(number), 1));
        }
        assert!(!add(&mut waiting, key(MAX_WAITING), 1));
        assert_eq!(waiting.len(), MAX_WAITING);
    }
}
