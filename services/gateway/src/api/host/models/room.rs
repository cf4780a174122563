//! How many bytes of requests to models are in memory at once: each is read, parsed and written again before a
//! provider has it.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::extract::{FromRequest, Request};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use protocol::id::RunId;
use serde::de::DeserializeOwned;

use super::BODY_BYTES;
use crate::api::ApiState;
use crate::api::auth::SpeaksFor;
use crate::api::error::{ApiError, ApiResult};
use crate::api::host::body::drain;
use crate::api::json::{json_bytes, parse};

/// Requests up to here are not counted: connections bound them.
const SMALL: usize = 64 * 1024;
/// The largest request: its body, and its images as text. A run may have one of them in memory, however little room
/// there is.
const LARGEST: usize = 2 * BODY_BYTES;

/// The room of this process. A run has half of it at most, or one of the largest requests, so that none keeps the
/// others out.
#[derive(Clone)]
pub(in crate::api) struct ModelRoom {
    share: usize,
    used: Arc<Mutex<Used>>,
}

struct Used {
    left: usize,
    by_run: HashMap<RunId, usize>,
}

/// A part of the room, given back on drop. `None`: too small to count.
pub(in crate::api) struct Taken(Option<Part>);

struct Part {
    room: ModelRoom,
    run: RunId,
    bytes: usize,
}

/// A JSON object as the body of a request to a model, with the room that it takes.
pub(in crate::api) struct ModelBody<T> {
    pub(in crate::api) value: T,
    pub(in crate::api) room: Taken,
}

impl ModelRoom {
    /// Room for so many bytes.
    pub(in crate::api) fn new(bytes: usize) -> Self {
        let used = Used {
            left: bytes,
            by_run: HashMap::new(),
        };
        Self {
            share: LARGEST.max(bytes / 2),
            used: Arc::new(Mutex::new(used)),
        }
    }

    /// Takes room for so many bytes of a run, or refuses: nobody waits with a large body in hand.
    pub(in crate::api) fn take(&self, run: RunId, bytes: usize) -> ApiResult<Taken> {
        if bytes <= SMALL {
            return Ok(Taken(None));
        }
        let mut used = self.used();
        let own = used.by_run.get(&run).copied().unwrap_or(0);
        if own + bytes > self.share {
            let message = "other large requests of this run to models fill its share of the gateway's memory for \
                them; wait for their answers, or send less";
            return Err(full("model_bytes_of_run", message));
        }
        if bytes > used.left {
            let message = "other large requests to models fill the gateway's memory for them; wait as long as \
                `Retry-After` says, or send less";
            return Err(full("model_bytes", message));
        }
        used.left -= bytes;
        used.by_run.insert(run, own + bytes);
        let room = self.clone();
        Ok(Taken(Some(Part { room, run, bytes })))
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn full(reason: &str, message: &str) -> ApiError {
    ApiError::rate_limited_by(reason, message.to_owned(), 1)
}

impl Taken {
    /// Gives back what is more than these bytes.
    fn shrink(&mut self, bytes: usize) {
        if let Some(part) = &mut self.0 {
            part.give_back(part.bytes.saturating_sub(bytes));
        }
    }
}

impl Part {
    fn give_back(&mut self, bytes: usize) {
        self.bytes -= bytes;
        let mut used = self.room.used();
        used.left += bytes;
        let own = used.by_run.get(&self.run).copied().unwrap_or(0);
        match own.saturating_sub(bytes) {
            0 => used.by_run.remove(&self.run),
            rest => used.by_run.insert(self.run, rest),
        };
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

impl<T: DeserializeOwned> FromRequest<ApiState> for ModelBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        // Its token was judged before.
        let Some(SpeaksFor(run)) = request.extensions().get().copied() else {
            return Err(ApiError::unauthenticated());
        };
        let bytes = announced(request.headers());
        let mut room = match state.model_room().take(run, bytes) {
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
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;

    const MIB: usize = 1024 * 1024;

    fn runs() -> [RunId; 2] {
        [1, 2].map(|number| RunId(Uuid::from_u128(number)))
    }

    fn refused(room: &ModelRoom, run: RunId, bytes: usize) -> Value {
        let (_, body) = room.take(run, bytes).err().unwrap().into_parts();
        assert_eq!(body.code, "rate_limited");
        body.details["reason"].clone()
    }

    #[test]
    fn there_is_room_until_it_is_taken_and_again_when_it_is_given_back() {
        let (room, [one, other]) = (ModelRoom::new(64 * MIB), runs());
        let take = |run, bytes| room.take(run, bytes).ok();
        let mut large = [
            take(one, 20 * MIB),
            take(one, 20 * MIB),
            take(other, 20 * MIB),
        ]
        .map(Option::unwrap);
        assert_eq!(refused(&room, other, 20 * MIB), "model_bytes");
        assert!(take(other, 4 * MIB).is_some(), "what is left is given");
        assert!(take(one, SMALL).is_some());
        large[0].shrink(4 * MIB);
        let fourth = take(other, 20 * MIB);
        assert!(fourth.is_some(), "the first was smaller than it said");
        drop((large, fourth));
        let used = room.used();
        assert_eq!((used.left, used.by_run.len()), (64 * MIB, 0));
    }

    #[test]
    fn no_run_has_more_than_its_share() {
        let (room, [one, other]) = (ModelRoom::new(128 * MIB), runs());
        let all = room.take(one, 64 * MIB).ok();
        assert_eq!(refused(&room, one, MIB), "model_bytes_of_run");
        assert!(room.take(other, 64 * MIB).is_ok());
        drop(all);
        assert!(room.take(one, MIB).is_ok());
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
