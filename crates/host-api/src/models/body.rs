//! The JSON body of model requests. It repeats text of models and tools, so characters that no JSON parser or
//! database accepts become U+FFFD: one of them must not end a conversation.

use std::borrow::Cow;
use std::ops::Deref;

use axum::extract::{FromRequest, Request};
use domain::json_repair::repair_json_text;
use http::HeaderMap;
use serde::de::DeserializeOwned;

use telemetry::tolerance::{Peer, tolerated};
use web::discard_body::discard_request_body;
use web::error::ApiError;
use web::json::{announced, json_bytes, parse};
use web::memory_budget::{MemoryBudget, MemoryPermit, Sender};
use web::model_memory::BODY_BYTES;
use web::state::ApiState;

/// The JSON body of a model request with its memory permit.
pub(crate) struct ModelBody<T> {
    pub(crate) value: T,
    pub(crate) permit: MemoryPermit,
}

impl<T: DeserializeOwned> FromRequest<ApiState> for ModelBody<T> {
    type Rejection = ApiError;

    async fn from_request(mut request: Request, state: &ApiState) -> Result<Self, ApiError> {
        // The middleware has already checked the token.
        let sender = request.extensions().get::<Sender>().copied();
        let sender = sender.ok_or_else(ApiError::unauthenticated)?;
        let bytes = max_body_bytes(request.headers());
        // Taken before the body is read: the announced length counts.
        let mut permit = match state.model_memory().take(sender, bytes) {
            Ok(permit) => permit,
            Err(refused) => {
                // Clients read no response while they send, so discard the rest of the body within limits.
                discard_request_body(request.into_body()).await;
                return Err(refused);
            }
        };
        // The body already has a permit of this budget.
        request.extensions_mut().remove::<MemoryBudget>();
        let bytes = json_bytes(request, state).await?;
        // The announced length was an upper bound.
        permit.shrink(bytes.len());
        let text = repair_json_text(&bytes);
        if let Cow::Owned(repaired) = &text {
            // The repaired copy and the original exist at the same time.
            permit.grow_to(bytes.len() + repaired.len())?;
            tolerated(Peer::Runner, "text_repaired", "a model request");
        }
        let value = parse(&text)?;
        // The repaired copy is dropped on return; the parsed value counts as much as its text.
        permit.shrink(bytes.len());
        Ok(Self { value, permit })
    }
}

/// Upper bound of a body: the announced length, or else the limit.
fn max_body_bytes(headers: &HeaderMap) -> usize {
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
    fn counts_undeclared_length_as_maximum() {
        let of = |length: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_LENGTH, length.parse().unwrap());
            max_body_bytes(&headers)
        };
        assert_eq!(of("5"), 5);
        assert_eq!(of("99999999999"), BODY_BYTES);
        assert_eq!(of("x"), BODY_BYTES);
        assert_eq!(max_body_bytes(&HeaderMap::new()), BODY_BYTES);
    }
}
