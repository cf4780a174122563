//! Requests and answers of the host API, the routes a runner calls back.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::{
    ActorContext, AgentEventContext, AgentInput, ConversationContext, SubjectContext,
};
use crate::message::Message;
use crate::{JsonObject, lenient};

/// The answer of `GET /host/v1/prompt`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EffectivePrompt {
    pub prompt: Vec<Message>,
}

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

/// `GET /host/v1/storage/{area}`: keys in byte order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StorageKeys {
    pub keys: Vec<String>,
    /// Opaque; null on the last page.
    pub next_cursor: Option<String>,
    pub has_more: bool,
}

/// The body of `POST /host/v1/run/cancel` and `POST /host/v1/runs/{id}/cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RunCancel {
    /// Becomes the run's `status_reason`; 1 to 500 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The body of `POST /host/v1/steering/pull`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SteeringPull {
    pub mode: SteeringMode,
    /// 1 to 100.
    pub limit: Option<u64>,
}

/// How much a pull takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SteeringMode {
    #[default]
    #[serde(rename = "all")]
    All,
    #[serde(rename = "one-at-a-time", alias = "one", alias = "one_at_a_time")]
    OneAtATime,
}

/// The answer of `POST /host/v1/steering/pull`, oldest first. Each event comes at most once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SteeringPullResult {
    pub items: Vec<SteeringInputItem>,
}

/// An event that came while the run was active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SteeringInputItem {
    pub claimed_run_id: String,
    pub runner_id: String,
    /// Epoch seconds.
    pub claimed_at: i64,
    pub event: AgentEventContext,
    #[serde(deserialize_with = "lenient::input")]
    pub input: AgentInput,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationContext>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::optional"
    )]
    pub actor: Option<ActorContext>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient::optional"
    )]
    pub subject: Option<SubjectContext>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// The answer of `POST /host/v1/token`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RenewedToken {
    pub token: String,
    /// Epoch seconds.
    pub token_expires_at: i64,
}
