//! What can go wrong with results that are appended.

use serde_json::json;

use super::ApiError;

impl ApiError {
    /// A result is missing before the first one that came.
    pub(in crate::api) fn sequence_gap(expected: u64) -> Self {
        let message = format!("result {expected} is expected next; send what is missing first");
        Self::conflict("sequence_gap", message).with("expected", json!(expected))
    }

    /// The POST of the run was not answered with 202.
    pub(in crate::api) fn not_deferred() -> Self {
        let message = "results are appended once the POST of the run was answered with 202; a runner that \
            streams sends them in its stream";
        Self {
            retryable: true,
            ..Self::conflict("not_deferred", message)
        }
    }
}
