//! Checks of the API keys of open streams. Each key is looked up once a second, whatever its number of streams, so
//! that streams end soon after a revocation or expiry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::id::{ApiKeyId, WorkspaceId};
use tokio::time::Instant;

use runs::Runs;

/// Interval between lookups of a key. Streams end within twice this after a revocation or expiry.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(1);
/// Number of cached keys above which keys without a stream are evicted.
const EVICTION_THRESHOLD: usize = 1024;

/// Cached lookups of the keys of open streams. Cheap to clone.
#[derive(Clone, Default)]
pub struct RevocationCache(Arc<Mutex<HashMap<ApiKeyId, CachedKeyState>>>);

struct CachedKeyState {
    at: Instant,
    /// Revoked or expired: both are final.
    revoked: bool,
}

impl RevocationCache {
    // The map is consistent after any panic.
    fn seen(&self) -> MutexGuard<'_, HashMap<ApiKeyId, CachedKeyState>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached result; `None`: the caller looks the key up.
    fn cached(&self, key: ApiKeyId, now: Instant) -> Option<bool> {
        let mut seen = self.seen();
        if seen.len() >= EVICTION_THRESHOLD {
            seen.retain(|_, seen| now - seen.at < 4 * LOOKUP_INTERVAL);
        }
        match seen.get_mut(&key) {
            Some(seen) if seen.revoked || now - seen.at < LOOKUP_INTERVAL => Some(seen.revoked),
            Some(seen) => {
                // Set before the look-up, so that other streams of the key skip it.
                seen.at = now;
                None
            }
            None => {
                let first = CachedKeyState {
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

/// Returns when the key is revoked or has expired.
pub async fn until_revoked(
    keys: RevocationCache,
    runs: Runs,
    workspace: WorkspaceId,
    key: ApiKeyId,
) {
    loop {
        tokio::time::sleep(LOOKUP_INTERVAL).await;
        match keys.cached(key, Instant::now()) {
            Some(true) => return,
            Some(false) => continue,
            None => {}
        }
        // Most streams are idle. Box the query, so that a stream holds its memory only during the lookup.
        let looked = runs.store().access().find_api_key_by_id(&workspace, key);
        match Box::pin(looked).await {
            Ok(Some(record)) if record.is_valid(runs.clock().now_ms()) => {}
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
    fn looks_up_each_key_once_per_second() {
        let keys = RevocationCache::default();
        let (key, other) = (ApiKeyId(Uuid::from_u128(1)), ApiKeyId(Uuid::from_u128(2)));
        let now = Instant::now();
        assert_eq!(keys.cached(key, now), None, "the first one looks");
        assert_eq!(keys.cached(key, now), Some(false));
        assert_eq!(keys.cached(other, now), None);
        assert_eq!(
            keys.cached(key, now + LOOKUP_INTERVAL),
            None,
            "the next second"
        );
        assert_eq!(keys.cached(key, now + LOOKUP_INTERVAL), Some(false));
        keys.revoke(key);
        assert_eq!(keys.cached(key, now + 9 * LOOKUP_INTERVAL), Some(true));
        assert_eq!(keys.cached(other, now + LOOKUP_INTERVAL / 2), Some(false));
    }

    #[test]
    fn evicts_keys_without_streams() {
        let keys = RevocationCache::default();
        let now = Instant::now();
        for key in 0..EVICTION_THRESHOLD as u128 {
            keys.cached(ApiKeyId(Uuid::from_u128(key)), now);
        }
        keys.cached(
            ApiKeyId(Uuid::from_u128(u128::MAX)),
            now + 5 * LOOKUP_INTERVAL,
        );
        assert_eq!(keys.seen().len(), 1);
    }
}
