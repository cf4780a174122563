//! What can go wrong with results that are appended.

use http::StatusCode;
use serde_json::json;

use super::ApiError;

impl ApiError {
    /// A result is missing before the first one that came.
    pub(crate) fn sequence_gap(expected: u64) -> Self {
        let message = format!("result {expected} is expected next; send what is missing first");
        Self::conflict("sequence_gap", message).with("expected", json!(expected))
    }

    /// Another result was accepted under a number that is sent again.
    pub(crate) fn sequence_conflict(sequence: u64) -> Self {
        let message = format!(
            "another result was accepted as {sequence}: a call is repeated with the same results, and an invocation that \
             begins anew goes on behind `accepted_through` of POST /host/v1/run/heartbeat, or ends the run"
        );
        Self::conflict("sequence_conflict", message).with("sequence", json!(sequence))
    }

    /// The run has no room for more.
    pub(crate) fn appended_too_much() -> Self {
        Self::too_large("the run has appended more than limits.run_bytes")
    }

    /// What the run has appended is not judged yet.
    pub(crate) fn appended_wait() -> Self {
        let message = "results that this run has appended before are not judged yet, and may write state; ask again as \
            soon as `Retry-After` says";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "runtime_error", message)
            .with("reason", json!("appended_results_wait"))
            .retryable_after(1)
    }

    /// The POST of the run was not answered with 202.
    pub(crate) fn not_deferred() -> Self {
        let message = "results are appended once the POST of the run was answered with 202; a runner that \
            streams sends them in its stream";
        Self {
            retryable: true,
            ..Self::conflict("not_deferred", message)
        }
    }
}
