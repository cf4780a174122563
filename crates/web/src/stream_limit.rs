//! Limits of concurrent streams and uploads per API key, so that no key uses up all connections.

use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec, Permit, Share};
use protocol::id::ApiKeyId;

use crate::error::ApiResult;

/// Streams end with their runs, so slots usually free up within the retry delay.
const STREAMS: LimitRefusal = LimitRefusal {
    reason: "key_streams",
    message: "streams that this API key reads take half of the gateway's connections; close some, or read \
              `GET /v1/runs/{run_id}/events` as pages",
    retry_after_seconds: 5,
};
/// Concurrent uploads of one key.
const UPLOADS: LimitSpec = LimitRefusal {
    reason: "key_uploads",
    message: "16 uploads of this API key are in progress, which is the limit; wait for one to end",
    retry_after_seconds: 5,
}
.at(16);

/// Concurrent requests of each key.
#[derive(Clone)]
pub struct KeyConcurrencyLimit {
    limit: LimitSpec,
    open: KeyedLimiter<ApiKeyId>,
}

/// A slot for one request of a key, released on drop.
pub type ConcurrencySlot = Permit<ApiKeyId>;

impl KeyConcurrencyLimit {
    /// Allows each key half of the connections for streams.
    pub fn of_streams(connections: usize) -> Self {
        Self::of(STREAMS.at((connections / 2).max(1)))
    }

    /// Allows each key 16 uploads.
    pub fn of_uploads() -> Self {
        Self::of(UPLOADS)
    }

    fn of(limit: LimitSpec) -> Self {
        Self {
            limit,
            open: KeyedLimiter::of_shares(),
        }
    }

    /// Takes a slot for the key, or fails.
    pub fn enter(&self, key: ApiKeyId) -> ApiResult<ConcurrencySlot> {
        let limit = self.limit;
        Ok(self.open.try_acquire([Share { key, limit }], 1)?)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn limits_streams_per_key_to_half_of_connections() {
        let limit = KeyConcurrencyLimit::of_streams(4);
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
        let again = enter(one);
        assert!(again.is_some());
        drop(elsewhere);
        assert_eq!(limit.open.used(), 1);
        assert!(KeyConcurrencyLimit::of_streams(1).enter(one).is_ok());
    }
}
