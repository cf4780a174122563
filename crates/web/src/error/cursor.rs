//! Errors of event cursors.

use http::StatusCode;
use protocol::id::RunId;
use serde_json::json;

use super::api_error::ApiError;

/// The events after the cursor were deleted by retention. The client continues from the run itself.
pub fn cursor_expired(run: RunId, last_sequence: u64) -> ApiError {
    let message = "retention has deleted these events; read the run at `snapshot_url`";
    ApiError::new(StatusCode::GONE, "cursor_expired", message)
        .with("snapshot_url", json!(format!("/v1/runs/{run}")))
        .with("oldest_sequence", json!(last_sequence + 1))
        .with("last_sequence", json!(last_sequence))
}

/// The messages of the feed after the position were deleted by retention. The client continues after the deleted ones.
pub fn feed_expired(deleted_through: u64) -> ApiError {
    let message = "messages after this position were deleted; read your lists, and continue from `details.after`";
    ApiError::new(StatusCode::GONE, "cursor_expired", message).with("after", json!(deleted_through))
}

/// The cursor is past the last event of the run.
pub fn cursor_past_end(last_sequence: u64) -> ApiError {
    ApiError::invalid_argument("the cursor is past the last event of this run")
        .with("last_sequence", json!(last_sequence))
}
