//! Errors of rate limits, concurrency limits and budgets.

use egress::limiter::LimitSpec;
use http::StatusCode;
use runs::pauses::CallsPaused;
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
    ApiError::rate_limited_by("refused_too_often", message.to_owned(), 10)
}

impl From<LimitSpec> for ApiError {
    fn from(LimitSpec { refusal, .. }: LimitSpec) -> Self {
        let message = refusal.message.to_owned();
        Self::rate_limited_by(refusal.reason, message, refusal.retry_after_seconds)
    }
}

/// A pause of an operator delays host calls.
impl From<CallsPaused> for ApiError {
    fn from(_: CallsPaused) -> Self {
        let message = "an operator has paused the calls of this run; send the call again after `Retry-After` seconds";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "paused", message).retryable_after(5)
    }
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
