//! Requests and answers of the host API, the routes a runner calls back.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::{
    ActorContext, AgentEventContext, AgentInput, ConversationContext, SubjectContext,
};
use crate::message::Message;
use crate::result::AgentRunResult;
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
    /// Becomes the run's `status_reason`; 1 to 500 characters. A code of the gateway (`host.…`, `timeout`,
    /// `runner.idle_timeout` …) counts as no reason.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500))]
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
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100))]
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

/// A file that a run, an event or the operator brought: what is known of it beside its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ArtifactMetadata {
    pub artifact_id: String,
    pub name: String,
    /// By its content; what was declared is kept where the content does not contradict it.
    pub mime_type: String,
    pub size: u64,
    /// Lower-case hex; with quotes around it, the `ETag` of the content.
    pub sha256: String,
    /// `runner`: uploaded by a run; `event`: came with an event; `file`: a file of the configuration;
    /// `tool`: a result of a tool that was too large to be handed over; `client`: uploaded by a client, for an event.
    pub origin: String,
    /// The run that uploaded it, or was given it by a tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// The event that it came with, or the one of its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// The ledger event of its run that announced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Epoch seconds; absent for files of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// Epoch seconds from which it is gone; absent for files of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

/// The body of `POST /host/v1/run/results`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunResults {
    /// 1 to 1,000, each with a `sequence` one above that of the one before.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1_000))]
    pub results: Vec<AgentRunResult>,
}

/// The answer of `POST /host/v1/run/results`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AppendedResults {
    /// All results up to this `sequence` are stored.
    pub accepted_through: u64,
}

/// The answer of `POST /host/v1/run/heartbeat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunHeartbeat {
    /// All results up to this `sequence` are stored: a runner that begins anew goes on from here.
    pub accepted_through: u64,
    /// Epoch seconds at which the run ends when nothing more is heard.
    pub lease_expires_at: i64,
    /// The run was asked to end: send what is left within the grace.
    pub cancel_requested: bool,
}
