//! The one error body of every route.

use serde::{Deserialize, Serialize};

use crate::JsonObject;

/// `{"error": {…}}`: what every answer of 4xx and 5xx holds, but for the one of `/readyz` and those to requests whose head
/// cannot be read (400) or is too large (431), which have no body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    pub error: AgentApiError,
}

/// The protocol's `AgentAPIError`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentApiError {
    /// One of the codes of the protocol, such as `unauthorized` or `invalid_argument`.
    pub code: String,
    /// What went wrong and what to do next.
    pub message: String,
    #[serde(default)]
    pub retryable: bool,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub details: JsonObject,
}
