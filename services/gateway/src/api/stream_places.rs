//! How many streams of runs each API key has open: none has so many that nobody else finds a connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::id::ApiKeyId;

use crate::api::error::{ApiError, ApiResult};

/// Streams end with their runs: some are over by then, as a rule.
const RETRY_AFTER_SECONDS: u32 = 5;

/// The open streams of every key that has some: no more than there are connections.
#[derive(Clone)]
pub(super) struct StreamPlaces {
    most: usize,
    open: Arc<Mutex<HashMap<ApiKeyId, usize>>>,
}

/// A stream of a key, until it is dropped.
pub(super) struct StreamPlace {
    places: StreamPlaces,
    key: ApiKeyId,
}

impl StreamPlaces {
    /// Half of the connections for each key.
    pub(super) fn of(connections: usize) -> Self {
        Self {
            most: (connections / 2).max(1),
            open: Arc::default(),
        }
    }

    /// A place for one more stream of a key.
    pub(super) fn enter(&self, key: ApiKeyId) -> ApiResult<StreamPlace> {
        let mut open = self.open();
        let count = open.entry(key).or_default();
        if *count >= self.most {
            return Err(too_many());
        }
        *count += 1;
        Ok(StreamPlace {
            places: self.clone(),
            key,
        })
    }

    // Plain numbers are whole after any panic.
    fn open(&self) -> MutexGuard<'_, HashMap<ApiKeyId, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let mut open = self.places.open();
        if let Some(count) = open.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.key);
            }
        }
    }
}

fn too_many() -> ApiError {
    let message = "streams that this API key reads take half of the gateway's connections; close some, or ask \
                   without `Accept: text/event-stream`";
    ApiError::rate_limited_by("key_streams", message.to_owned(), RETRY_AFTER_SECONDS)
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_key_has_half_of_the_connections_for_its_streams_and_nothing_is_remembered_of_who_left() {
        let places = StreamPlaces::of(4);
        let [one, other] = [1, 2].map(|number| ApiKeyId(Uuid::from_u128(number)));
        let enter = |key| places.enter(key).ok();
        let both = [enter(one), enter(one)].map(Option::unwrap);
        let (status, refused) = places.enter(one).err().unwrap().into_parts();
        assert_eq!((status, refused.code.as_str()), (429, "rate_limited"));
        assert_eq!(refused.details["reason"], "key_streams");
        assert!(refused.retryable);
        let elsewhere = enter(other);
        assert!(elsewhere.is_some(), "another key has its own");
        drop(both);
        assert!(enter(one).is_some());
        drop(elsewhere);
        assert!(places.open().is_empty());
        assert!(StreamPlaces::of(1).enter(one).is_ok());
    }
}
