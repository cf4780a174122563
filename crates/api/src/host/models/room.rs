//! Model requests and their memory budget. Each request is read, parsed and serialized again for the provider.

use std::ops::Deref;

use axum::extract::{FromRequest, Request};
use http::HeaderMap;
use serde::de::DeserializeOwned;

use super::BODY_BYTES;
use crate::ApiState;
use crate::drain::drain_body;
use crate::error::ApiError;
use crate::json::{announced, json_bytes, parse};
use crate::room::{BodyRoom, Room, Sender, Sign, Taken};

/// Maximum size of a request: its body, and its images in base64. One such request per run always fits.
const LARGEST: usize = 2 * BODY_BYTES;

const MODELS: Sign = Sign {
    small: 64 * 1024,
    own_full: (
        "model_bytes_of_run",
        "other large requests of this run to models fill its share of the gateway's memory for them; wait for their \
         answers, or send less",
    ),
    endpoint_full: (
        "model_bytes_of_endpoint",
        "other large requests to models by runs of the same endpoint fill its share of the gateway's memory for them; wait as \
         long as `Retry-After` says, or send less",
    ),
    full: (
        "model_bytes",
        "other large requests to models fill the gateway's memory for them; wait as long as `Retry-After` says, or \
         send less",
    ),
};

/// The JSON body of a model request with its memory permit.
pub(crate) struct ModelBody<T> {
    pub(crate) value: T,
    pub(crate) permit: Taken,
}

/// Creates the memory budget for model requests.
pub(crate) fn room_for_models(bytes: usize) -> Room {
    Room::new(MODELS, bytes, LARGEST)
}

impl<T: DeserializeOwned> FromRequest<ApiState> for ModelBody<T> {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, state: &ApiState) -> Result<Self, ApiError> {
        // The middleware has already checked the token.
        let sender = request.extensions().get::<Sender>().copied();
        let sender = sender.ok_or_else(ApiError::unauthenticated)?;
        let bytes = at_most(request.headers());
        let mut permit = match state.model_room().take(sender, bytes) {
            Ok(permit) => permit,
            Err(refused) => {
                // Clients read no response while they send, so discard the rest of the body within limits.
                drain_body(request.into_body()).await;
                return Err(refused);
            }
        };
        // The body already has a permit of this budget.
        request.extensions_mut().remove::<BodyRoom>();
        let bytes = json_bytes(request, state).await?;
        permit.shrink(bytes.len());
        let value = parse(&bytes)?;
        Ok(Self { value, permit })
    }
}

/// Upper bound of a body: the announced length, or else the limit.
fn at_most(headers: &HeaderMap) -> usize {
    announced(headers).unwrap_or(BODY_BYTES).min(BODY_BYTES)
}

impl<T> Deref for ModelBody<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_LENGTH;

    use super::*;

    #[test]
    fn who_says_no_length_takes_the_most() {
        let of = |length: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_LENGTH, length.parse().unwrap());
            at_most(&headers)
        };
        assert_eq!(of("5"), 5);
        assert_eq!(of("99999999999"), BODY_BYTES);
        assert_eq!(of("x"), BODY_BYTES);
        assert_eq!(at_most(&HeaderMap::new()), BODY_BYTES);
    }
}
