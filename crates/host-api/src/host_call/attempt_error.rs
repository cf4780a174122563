//! Failure of one attempt of a model call.

use http::StatusCode;

use egress::upstream::UpstreamError;
use web::error::ApiError;

/// Failure of one attempt.
pub(crate) enum AttemptError {
    /// The candidate cannot take this request, for example because it has no translation.
    Excluded(ApiError),
    /// The provider failed before its first byte.
    Upstream(UpstreamError),
    /// Every candidate would fail with it: the run is over, or a budget is spent.
    Final(ApiError),
}

impl AttemptError {
    /// A request that could not be prepared for a candidate.
    pub(crate) fn of_request(error: ApiError) -> Self {
        match error.status {
            StatusCode::BAD_REQUEST => Self::Excluded(error),
            _ => Self::Final(error),
        }
    }
}

impl From<ApiError> for AttemptError {
    fn from(error: ApiError) -> Self {
        Self::Final(error)
    }
}

impl From<AttemptError> for ApiError {
    fn from(error: AttemptError) -> Self {
        match error {
            AttemptError::Excluded(error) | AttemptError::Final(error) => error,
            AttemptError::Upstream(error) => error.into(),
        }
    }
}
