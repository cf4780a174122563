//! Errors of artifacts and blobs.

use http::StatusCode;
use serde_json::json;
use store::ShareOf;

use super::api_error::ApiError;
use super::body::slow_body;
use blob_store::ArtifactStoreError;
use runs::artifacts::UploadError;

pub fn area_full() -> ApiError {
    let message = "this storage area is full; delete blobs that are no longer needed";
    ApiError::too_large(message).with("reason", json!("area_full"))
}

pub fn area_share_full() -> ApiError {
    let message = "this run, or its agent, has its share of this storage area, and the rest is for others; \
                   delete what is not needed any more";
    ApiError::too_large(message).with("reason", json!("area_share"))
}

/// The blob does not match `If-Match` or `If-None-Match`.
pub fn precondition_failed() -> ApiError {
    let message = "the blob under this key has changed or does not exist; read it and try again";
    ApiError::new(
        StatusCode::PRECONDITION_FAILED,
        "precondition_failed",
        message,
    )
}

pub fn no_such_range(size: u64) -> ApiError {
    let message = format!("the content has {size} bytes, and none of those");
    let status = StatusCode::RANGE_NOT_SATISFIABLE;
    ApiError {
        content_range: Some(format!("bytes */{size}")),
        ..ApiError::new(status, "invalid_argument", message)
    }
}

impl From<ArtifactStoreError> for ApiError {
    fn from(error: ArtifactStoreError) -> Self {
        tracing::error!(
            error = &error as &dyn std::error::Error,
            "the artifact store failed a request"
        );
        let message = "the artifact store does not respond; try again";
        Self::unavailable(message)
    }
}

impl From<UploadError> for ApiError {
    fn from(error: UploadError) -> Self {
        let message = error.to_string();
        match error {
            UploadError::TooLarge { .. } => Self::too_large(message),
            UploadError::Full => Self::too_large(message).with("reason", json!("workspace_full")),
            UploadError::ShareFull(share) => {
                let reason = match share {
                    ShareOf::Run => "run_share",
                    ShareOf::Agent => "agent_share",
                    ShareOf::Runs => "runs_share",
                    ShareOf::Uploads => "uploads_share",
                };
                Self::too_large(message).with("reason", json!(reason))
            }
            UploadError::TypeRefused(kind) => {
                let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                Self::new(status, "invalid_argument", message)
                    .with("reason", json!("mime_type_refused"))
                    .with("mime_type", json!(kind))
            }
            UploadError::TooMany => {
                let status = StatusCode::TOO_MANY_REQUESTS;
                Self::new(status, "rate_limited", message).with("reason", json!("run_artifacts"))
            }
            // As for a token of a run that has ended: the caller learns nothing else.
            UploadError::RunEnded => Self::unauthenticated(),
            UploadError::Expired => slow_body(),
            UploadError::BlobStore(error) => error.into(),
            UploadError::Store(error) => error.into(),
        }
    }
}
