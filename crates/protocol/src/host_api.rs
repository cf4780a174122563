//! Requests and answers of the host API, the routes a runner calls back.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `GET /host/v1/state/{scope}/{key}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateValue {
    pub value: Value,
    /// Rises with every write of this key.
    pub version: i64,
}

/// The body of `PUT /host/v1/state/{scope}/{key}`: any JSON, at most 256 KiB.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StatePut {
    pub value: Value,
}

/// The answer of `PUT /host/v1/state/{scope}/{key}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateVersion {
    pub version: i64,
}

/// `GET /host/v1/state/{scope}`: keys in byte order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateKeys {
    pub keys: Vec<String>,
    pub has_more: bool,
}

/// The answer of `POST /host/v1/token`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RenewedToken {
    pub token: String,
    /// Epoch seconds.
    pub token_expires_at: i64,
}
