//! The API keys of open streams. Each is looked up once a second, however many streams it has opened,
//! so that a stream ends soon after its key was revoked.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protocol::id::{ApiKeyId, WorkspaceId};
use tokio::time::Instant;

use crate::ApiState;

/// Between two looks at a key. A stream that is open ends within twice this.
const LOOK: Duration = Duration::from_secs(1);
/// Keys that are remembered before those without a stream are forgotten.
const TIDY: usize = 1024;

/// What is known of the keys of open streams.
#[derive(Default)]
pub(super) struct WatchedKeys(Mutex<HashMap<ApiKeyId, Seen>>);

struct Seen {
    at: Instant,
    revoked: bool,
}

impl WatchedKeys {
    // A map of plain values is whole after any panic.
    fn seen(&self) -> MutexGuard<'_, HashMap<ApiKeyId, Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known of a key; `None`: it is the caller's turn to look.
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

/// Ends once the key opens nothing any more.
pub(super) async fn until_revoked(state: ApiState, workspace: WorkspaceId, key: ApiKeyId) {
    loop {
        tokio::time::sleep(LOOK).await;
        match state.watched_keys().known(key, Instant::now()) {
            Some(true) => return,
            Some(false) => continue,
            None => {}
        }
        // Most streams only wait: each holds the question while it asks, and no longer.
        let looked = state.runs.store().find_api_key_by_id(&workspace, key);
        match Box::pin(looked).await {
            Ok(Some(record)) if record.revoked_at.is_none() => {}
            Ok(_) => {
                state.watched_keys().revoke(key);
                return;
            }
            // The database does not answer: nothing new is shown either.
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the key of a stream could not be looked up");
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
