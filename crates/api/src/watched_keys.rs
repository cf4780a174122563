//! Revocation checks for the API keys of open streams. Each key is looked up once a second, whatever its number
//! of streams, so that streams end soon after a revocation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::id::{ApiKeyId, WorkspaceId};
use tokio::time::Instant;

use runs::Runs;

/// Interval between lookups of a key. Streams end within twice this after a revocation.
const LOOK: Duration = Duration::from_secs(1);
/// Number of cached keys above which keys without a stream are evicted.
const TIDY: usize = 1024;

/// Cached lookups of the keys of open streams. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct WatchedKeys(Arc<Mutex<HashMap<ApiKeyId, Seen>>>);

struct Seen {
    at: Instant,
    revoked: bool,
}

impl WatchedKeys {
    // The map is consistent after any panic.
    fn seen(&self) -> MutexGuard<'_, HashMap<ApiKeyId, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached result; `None` tells the caller to look the key up.
    fn known(&self, key: ApiKeyId, now: Instant) -> Option<bool> {
        let mut seen = self.seen();
        if seen.len() >= TIDY {
            seen.retain(|_, seen| now - seen.at < 4 * LOOK);
        }
        match seen.get_mut(&key) {
            Some(seen) if seen.revoked || now - seen.at < LOOK => Some(seen.revoked),
            Some(seen) => {
                seen.at = now;
                None
            }
            None => {
                let first = Seen {
                    at: now,
                    revoked: false,
                };
                seen.insert(key, first);
                None
            }
        }
    }

    fn revoke(&self, key: ApiKeyId) {
        if let Some(seen) = self.seen().get_mut(&key) {
            seen.revoked = true;
        }
    }
}

/// Returns when the key is revoked.
pub(super) async fn until_revoked(
    keys: WatchedKeys,
    runs: Runs,
    workspace: WorkspaceId,
    key: ApiKeyId,
) {
    loop {
        tokio::time::sleep(LOOK).await;
        match keys.known(key, Instant::now()) {
            Some(true) => return,
            Some(false) => continue,
            None => {}
        }
        // Most streams are idle. Box the query, so that a stream holds its memory only during the lookup.
        let looked = state
            .runs
            .store()
            .access()
            .find_api_key_by_id(&workspace, key);
        match Box::pin(looked).await {
            Ok(Some(record)) if record.revoked_at.is_none() => {}
            Ok(_) => {
                keys.revoke(key);
                return;
            }
            // While the database is down, the stream gets no new events either.
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    error,
                    "the API key of a stream could not be looked up, trying again"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::id::ApiKeyId;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn one_stream_of_a_key_looks_in_each_second_and_all_hear_of_the_revocation() {
        let keys = WatchedKeys::default();
        let (key, other) = (ApiKeyId(Uuid::from_u128(1)), ApiKeyId(Uuid::from_u128(2)));
        let now = Instant::now();
        assert_eq!(keys.known(key, now), None, "the first one looks");
        assert_eq!(keys.known(key, now), Some(false));
        assert_eq!(keys.known(other, now), None);
        assert_eq!(keys.known(key, now + LOOK), None, "the next second");
        assert_eq!(keys.known(key, now + LOOK), Some(false));
        keys.revoke(key);
        assert_eq!(keys.known(key, now + 9 * LOOK), Some(true));
        assert_eq!(keys.known(other, now + LOOK / 2), Some(false));
    }

    #[test]
    fn keys_without_streams_are_forgotten() {
        let keys = WatchedKeys::default();
        let now = Instant::now();
        for key in 0..TIDY as u128 {
            keys.known(ApiKeyId(Uuid::from_u128(key)), now);
        }
        keys.known(ApiKeyId(Uuid::from_u128(u128::MAX)), now + 5 * LOOK);
        assert_eq!(keys.seen().len(), 1);
    }
}
