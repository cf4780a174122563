//! Errors of answers to interactions, and of waits for child runs.

use http::StatusCode;
use serde_json::json;

use super::api_error::ApiError;
use runs::awaited::AwaitError;
use runs::call_wait::WaitError;

/// A different answer was accepted earlier.
pub fn already_submitted() -> ApiError {
    let message = "this interaction has a different answer already; the first answer counts";
    ApiError::conflict("already_submitted", message)
}

/// The answer arrived after the expiry, by the gateway's clock.
pub fn interaction_expired() -> ApiError {
    let message = "this interaction has expired; the agent has to ask again";
    ApiError::new(StatusCode::GONE, "conflict", message).with("reason", json!("expired"))
}

/// The run of the interaction was cancelled.
pub fn interaction_cancelled() -> ApiError {
    let message = "this interaction was cancelled with its run; the agent has to ask again";
    ApiError::new(StatusCode::GONE, "conflict", message).with("reason", json!("cancelled"))
}

impl From<AwaitError> for ApiError {
    fn from(error: AwaitError) -> Self {
        match error {
            AwaitError::Unknown => {
                super::routing::no_such("this run has no interaction with this id")
            }
            AwaitError::NotAwaited => {
                let message = "this interaction was created without `await: true`: its answer comes as an event, \
                    in a run of its own";
                Self::conflict("not_awaited", message)
            }
            AwaitError::Wait(error) => error.into(),
            AwaitError::Store(error) => error.into(),
        }
    }
}

impl From<WaitError> for ApiError {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::Full(limit) => limit.into(),
            WaitError::Over(over) => over.into(),
            WaitError::Store(error) => error.into(),
        }
    }
}
