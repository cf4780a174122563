//! What can go wrong with an answer to a question.

use http::StatusCode;
use serde_json::json;

use super::ApiError;

impl ApiError {
    /// Another answer was taken before.
    pub(in crate::api) fn already_submitted() -> Self {
        Self::conflict("already_submitted", "this interaction was answered before")
    }

    /// It came too late, by the gateway's clock.
    pub(in crate::api) fn interaction_expired() -> Self {
        let message = "this interaction has expired; the agent has to ask again";
        Self::new(StatusCode::GONE, "conflict", message).with("reason", json!("expired"))
    }
}
