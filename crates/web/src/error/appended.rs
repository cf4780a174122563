//! Errors of appended results.

use serde_json::json;

use super::api_error::ApiError;

/// A result is missing before the first one of the request.
pub fn sequence_gap(expected: u64) -> ApiError {
    let message = format!("result {expected} is expected next; send the missing results first");
    ApiError::conflict("sequence_gap", message).with("expected", json!(expected))
}

/// A different result was accepted under the same sequence.
pub fn sequence_conflict(sequence: u64) -> ApiError {
    let message = format!(
        "a different result was accepted as {sequence}: repeat a call with the same results; a restarted runner \
         continues after `accepted_through` of POST /host/v1/run/heartbeat, or ends the run"
    );
    ApiError::conflict("sequence_conflict", message).with("sequence", json!(sequence))
}

/// The run has reached its byte limit.
pub fn append_limit_exceeded() -> ApiError {
    ApiError::too_large("the appended results exceed limits.run_bytes")
}

/// Earlier appended results of the run are still pending.
pub fn appends_pending() -> ApiError {
    let message = "earlier appended results of this run are still being processed and may write state; try again \
        after `Retry-After` seconds";
    ApiError::unavailable(message).with("reason", json!("appended_results_wait"))
}

/// The dispatch of the run was not answered with 202.
pub fn not_deferred() -> ApiError {
    let message = "results are appended once the POST of the run was answered with 202; a runner that \
        streams sends them in its stream";
    ApiError {
        retryable: true,
        ..ApiError::conflict("not_deferred", message)
    }
}
