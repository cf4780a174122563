//! Errors of rate limits, concurrency limits and budgets.

use http::StatusCode;
use serde_json::json;

use super::api_error::ApiError;

pub fn rate_limited() -> ApiError {
    let message = "this run calls too often; retry after `Retry-After` seconds";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message).retryable_after(1)
}

/// The address has sent too many wrong credentials.
pub fn refused_too_often() -> ApiError {
    let message = "too many credentials from this address were refused; send a valid one after \
                       `Retry-After` seconds";
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
        .with("reason", json!("refused_too_often"))
        .retryable_after(10)
}

/// The run has reached its limit of concurrent uploads and deletes.
pub fn uploads_full() -> ApiError {
    let message = "other uploads and deletes of this run are under way; wait for their answers";
    ApiError::rate_limited_by("uploads", message.to_owned(), 1)
}

/// The run has reached its limit of concurrent host calls.
pub fn host_calls_full() -> ApiError {
    let message = "the run has reached its limit of concurrent host calls; wait for their responses, and read them";
    ApiError::rate_limited_by("host_calls", message.to_owned(), 1)
}

/// A budget is used up. `seconds` is the time until it resets, if it does.
pub fn over_budget(message: String, seconds: Option<u32>) -> ApiError {
    let refused = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message)
        .with("reason", json!("budget"));
    // A budget without a window never resets, so a retry has no sense.
    match seconds {
        Some(seconds) => refused.retryable_after(seconds),
        None => refused,
    }
}

/// A budget limits cost, and this model has no price.
pub fn without_price(model: &str, budget: &str) -> ApiError {
    let message = format!(
        "{model} has no price, so the budget {budget} cannot count its cost; the operator sets input_price and \
         output_price in its [[models]], or unpriced = \"free\""
    );
    ApiError::new(StatusCode::FORBIDDEN, "unauthorized", message)
        .with("reason", json!("unpriced"))
        .with("budget", json!(budget))
}
