//! Limit of concurrent event streams per API key, so that no key uses up all connections.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::id::ApiKeyId;

use crate::error::{ApiError, ApiResult};

/// Retry delay. Streams end with their runs, so slots usually free up within it.
const RETRY_AFTER_SECONDS: u32 = 5;
/// Maximum concurrent uploads of one key.
const UPLOADS: usize = 16;

/// Counts of open streams by key.
#[derive(Clone)]
pub struct KeyConcurrencyLimit {
    max_per_key: usize,
    refusal: fn() -> ApiError,
    open: Arc<Mutex<HashMap<ApiKeyId, usize>>>,
}

/// A slot for one stream of a key, released on drop.
pub struct ConcurrencySlot {
    limit: KeyConcurrencyLimit,
    key: ApiKeyId,
}

impl KeyConcurrencyLimit {
    /// Allows each key half of the connections.
    pub fn of(connections: usize) -> Self {
        Self {
            max_per_key: (connections / 2).max(1),
            refusal: too_many,
            open: Arc::default(),
        }
    }

    /// Allows each key `UPLOADS` uploads.
    pub fn of_uploads() -> Self {
        Self {
            max_per_key: UPLOADS,
            refusal: too_many_uploads,
            open: Arc::default(),
        }
    }

    /// Takes a slot for the key, or fails.
    pub fn enter(&self, key: ApiKeyId) -> ApiResult<ConcurrencySlot> {
        let mut open = self.open();
        let count = open.entry(key).or_default();
        if *count >= self.max_per_key {
            return Err((self.refusal)());
        }
        *count += 1;
        Ok(ConcurrencySlot {
            limit: self.clone(),
            key,
        })
    }

    // The counts are consistent after any panic.
    fn open(&self) -> MutexGuard<'_, HashMap<ApiKeyId, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConcurrencySlot {
    fn drop(&mut self) {
        let mut open = self.limit.open();
        if let Some(count) = open.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

fn too_many_uploads() -> ApiError {
    let message = format!(
        "{UPLOADS} uploads of this API key are in progress, which is the limit; wait for one to end"
    );
    ApiError::rate_limited_by("key_uploads", message, RETRY_AFTER_SECONDS)
}

fn too_many() -> ApiError {
    let message = "streams that this API key reads take half of the gateway's connections; close some, or read \
                   `GET /v1/runs/{run_id}/events` as pages";
    ApiError::rate_limited_by("key_streams", message.to_owned(), RETRY_AFTER_SECONDS)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn limits_streams_per_key_to_half_of_connections() {
        let limit = KeyConcurrencyLimit::of(4);
        let [one, other] = [1, 2].map(|number| ApiKeyId(Uuid::from_u128(number)));
        let enter = |key| limit.enter(key).ok();
        let both = [enter(one), enter(one)].map(Option::unwrap);
        let (status, refused) = limit.enter(one).err().unwrap().into_parts();
        assert_eq!((status, refused.code.as_str()), (429, "rate_limited"));
        assert_eq!(refused.details["reason"], "key_streams");
        assert!(refused.retryable);
        let elsewhere = enter(other);
        assert!(elsewhere.is_some(), "another key has its own");
        drop(both);
        assert!(enter(one).is_some());
        drop(elsewhere);
        assert!(limit.open().is_empty());
        assert!(KeyConcurrencyLimit::of(1).enter(one).is_ok());
    }
}
