//! Errors of changes to objects with a version.

use serde_json::json;

use super::api_error::ApiError;

/// The current version differs from `If-Match`.
pub fn version_conflict(version: i64) -> ApiError {
    ApiError::conflict(
        "version_mismatch",
        "the version does not match; read the current one and try again",
    )
    .with("version", json!(version))
}

pub fn read_only() -> ApiError {
    ApiError::conflict(
        "read_only",
        "this is defined in the configuration file; change it there",
    )
}
