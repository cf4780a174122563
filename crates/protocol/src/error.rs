//! Error body of every route.

use serde::{Deserialize, Serialize};

use crate::JsonObject;

/// Body of every 4xx and 5xx response: `{"error": {…}}`. Exceptions are `/readyz`, and the 400 and 431 responses
/// to request heads that are unreadable or too large. The latter have no body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    pub error: AgentApiError,
}

/// An API error (the protocol's `AgentAPIError`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentApiError {
    /// Error code of the protocol, such as `unauthorized` or `invalid_argument`.
    pub code: String,
    /// Cause of the error and the next step.
    pub message: String,
    #[serde(default)]
    pub retryable: bool,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub details: JsonObject,
}
