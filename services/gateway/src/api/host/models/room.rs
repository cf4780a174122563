//! How many bytes of requests to models are in memory at once: each is read, parsed and written again before a
//! provider has it.

use std::ops::Deref;
use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use serde::de::DeserializeOwned;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::BODY_BYTES;
use crate::api::ApiState;
use crate::api::error::{ApiError, ApiResult};
use crate::api::host::body::drain;
use crate::api::json::{json_bytes, parse};

/// Requests up to here are not counted: connections bound them.
const SMALL: usize = 64 * 1024;
/// What one permit stands for.
const UNIT: usize = 1024;

/// The room of this process.
#[derive(Clone)]
pub(in crate::api) struct ModelRoom(Arc<Semaphore>);

/// A part of the room, given back on drop.
pub(in crate::api) struct Taken(Option<OwnedSemaphorePermit>);

/// A JSON object as the body of a request to a model, with the room that it takes.
pub(in crate::api) struct ModelBody<T> {
    pub(in crate::api) value: T,
    pub(in crate::api) room: Taken,
}

impl ModelRoom {
    /// Room for so many bytes.
    pub(in crate::api) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / UNIT)))
    }

    /// Takes room for so many bytes, or refuses: nobody waits with a large body in hand.
    pub(in crate::api) fn take(&self, bytes: usize) -> ApiResult<Taken> {
        if bytes <= SMALL {
            return Ok(Taken(None));
        }
        let permits = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let taken = Arc::clone(&self.0).try_acquire_many_owned(permits);
        let taken = taken.map_err(|_| {
            let message = "other large requests to models fill the gateway's memory for them; wait as long as \
                `Retry-After` says, or send less";
            ApiError::rate_limited_by("model_bytes", message.to_owned(), 1)
        })?;
        Ok(Taken(Some(taken)))
    }
}

impl Taken {
    /// Gives back what is more than these bytes.
    fn shrink(&mut self, bytes: usize) {
        if let Some(taken) = &mut self.0 {
            let more = taken.num_permits().saturating_sub(bytes.div_ceil(UNIT));
            drop(taken.split(more));
        }
    }
}

impl<T: DeserializeOwned> FromRequest<ApiState> for ModelBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        let mut room = match state.model_room().take(announced(request.headers())) {
            Ok(room) => room,
            Err(refused) => {
                // Who is still sending reads no answer: let it come to its end, within bounds.
                drain(&mut request.into_body().into_data_stream()).await;
                return Err(refused);
            }
        };
        let bytes = json_bytes(request, state).await?;
        room.shrink(bytes.len());
        let value = parse(&bytes)?;
        Ok(Self { value, room })
    }
}

/// The bytes that a body may have: as many as it says, else as many as are taken.
fn announced(headers: &HeaderMap) -> usize {
    let length = headers.get(CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    length.unwrap_or(BODY_BYTES).min(BODY_BYTES)
}

impl<T> Deref for ModelBody<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn there_is_room_until_it_is_taken_and_again_when_it_is_given_back() {
        let room = ModelRoom::new(64 * MIB);
        let mut large: Vec<_> = (0..3).map(|_| room.take(20 * MIB).ok().unwrap()).collect();
        let refused = room.take(20 * MIB).err().unwrap();
        assert_eq!(refused.code(), "rate_limited");
        assert!(room.take(4 * MIB).is_ok(), "what is left is given");
        assert!(room.take(SMALL).is_ok());
        large[0].shrink(4 * MIB);
        let fourth = room.take(20 * MIB).ok();
        assert!(fourth.is_some(), "it was smaller than it said");
        drop((large, fourth));
        assert!(room.take(64 * MIB).is_ok());
    }

    #[test]
    fn who_says_no_length_takes_the_most() {
        let of = |length: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_LENGTH, length.parse().unwrap());
            announced(&headers)
        };
        assert_eq!(of("5"), 5);
        assert_eq!(of("99999999999"), BODY_BYTES);
        assert_eq!(of("x"), BODY_BYTES);
        assert_eq!(announced(&HeaderMap::new()), BODY_BYTES);
    }
}
