//! Requests and responses of the host API, the routes that runners call.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::context::{
    ActorContext, AgentEventContext, AgentInput, ConversationContext, SubjectContext,
};
use crate::id::RunId;
use crate::message::Message;
use crate::result::AgentRunResult;
use crate::{JsonObject, lenient};

/// Response of `GET /host/v1/prompt`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EffectivePrompt {
    pub prompt: Vec<Message>,
}

/// Response of `GET /host/v1/state/{scope}/{key}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateValue {
    pub value: Value,
    /// Increases with every write of this key.
    pub version: i64,
    /// Absent if the last write had none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Value>,
    /// Absent without a valid lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<StateLease>,
}

/// Exclusive right of a run to write a key. It ends with the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateLease {
    pub run_id: RunId,
    /// Epoch milliseconds.
    pub expires_at: i64,
}

/// Body of `PUT /host/v1/state/{scope}/{key}`: the new version of a value, with its bodies in one transaction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct StatePut {
    /// Any JSON, at most 256 KiB.
    pub value: Value,
    /// Any JSON for the list of keys, at most 2 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<Value>,
    /// Takes or renews the lease for this time. Absent: the key has no lease after the write.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86_400))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_seconds: Option<u32>,
    /// Larger values by id, added or replaced. A key has at most 4,096.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub bodies: BTreeMap<String, Value>,
    /// Ids of all bodies that the new version references, in addition to `bodies`; every other body is deleted.
    /// Absent: all stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_ids: Option<Vec<String>>,
}

impl StatePut {
    /// A value without summary, lease and new bodies.
    pub fn of(value: impl Into<Value>) -> Self {
        Self {
            value: value.into(),
            summary: None,
            lease_seconds: None,
            bodies: BTreeMap::new(),
            body_ids: None,
        }
    }
}

/// Response of `PUT /host/v1/state/{scope}/{key}`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateVersion {
    pub version: i64,
}

/// Body of `PUT /host/v1/checkpoint`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckpointPut {
    /// State from which the runner can continue the run; at most 256 KiB of JSON.
    pub value: Value,
    /// `sequence` of the last result that the value includes. The call waits until the ledger has it. Default: the
    /// last result in the ledger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub sequence: Option<u64>,
}

/// Response of `PUT /host/v1/checkpoint`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CheckpointVersion {
    /// From 1, one more with each write.
    pub version: i64,
    /// Sequence of the last ledger event that the checkpoint includes; 0 for none.
    pub after: u64,
}

/// Response of `GET /host/v1/checkpoint`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunCheckpoint {
    pub value: Value,
    pub version: i64,
    /// Sequence of the last ledger event that the checkpoint includes; 0 for none.
    pub after: u64,
}

/// Response of `GET /host/v1/state/{scope}`: keys in byte order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateKeys {
    pub keys: Vec<String>,
    pub has_more: bool,
    /// Those of the keys that have a summary.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub documents: Vec<StateDocument>,
}

/// A key with a summary, without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StateDocument {
    pub key: String,
    pub version: i64,
    pub summary: Value,
    /// Absent without a valid lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease: Option<StateLease>,
}

/// Response of `GET /host/v1/storage/{area}`: keys in byte order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StorageKeys {
    pub keys: Vec<String>,
    /// Opaque cursor. Null on the last page.
    pub next_cursor: Option<String>,
    pub has_more: bool,
}

/// Body of `POST /host/v1/run/cancel` and `POST /host/v1/runs/{id}/cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RunCancel {
    /// Becomes the run's `status_reason`; 1 to 500 characters. A code reserved for the gateway (`host.…`,
    /// `timeout`, `runner.idle_timeout` …) is ignored.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Body of `POST /host/v1/steering/pull`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct SteeringPull {
    pub mode: SteeringMode,
    /// Maximum number of events, 1 to 100.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100))]
    pub limit: Option<u64>,
}

/// Number of events that a pull takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum SteeringMode {
    #[default]
    #[serde(rename = "all")]
    All,
    #[serde(rename = "one-at-a-time", alias = "one", alias = "one_at_a_time")]
    OneAtATime,
}

/// Response of `POST /host/v1/steering/pull`, oldest first. Each event is delivered at most once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SteeringPullResult {
    pub items: Vec<SteeringInputItem>,
}

/// An event that arrived while the run was active.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SteeringInputItem {
    pub claimed_run_id: String,
    pub runner_id: String,
    /// Time of the claim, in epoch seconds.
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

/// Response of `POST /host/v1/token`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RenewedToken {
    pub token: String,
    /// Expiry of the token, in epoch seconds.
    pub token_expires_at: i64,
}

/// Metadata of an artifact: a file from a run, an event, a client or the configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ArtifactMetadata {
    pub artifact_id: String,
    pub name: String,
    /// MIME type detected from the content. The declared type is kept unless the content contradicts it.
    pub mime_type: String,
    pub size: u64,
    /// SHA-256 in lower-case hex. In quotes it is the `ETag` of the content.
    pub sha256: String,
    /// Origin of the artifact.
    ///
    /// - `runner`: uploaded by a run.
    /// - `event`: attached to an event.
    /// - `file`: a file of the configuration.
    /// - `tool`: a tool result above the inline limit.
    /// - `client`: uploaded by a client for an event.
    pub origin: String,
    /// Run that uploaded the artifact, or whose tool call produced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// Event to which the artifact was attached, or the event of its run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// Sequence of the ledger event that announced the artifact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sequence: Option<u64>,
    /// Creation time, in epoch seconds. Absent for files of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// Expiry, in epoch seconds. Absent for files of the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<i64>,
}

/// Body of `POST /host/v1/run/results`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RunResults {
    /// 1 to 1,000 results. Each `sequence` is one above the previous.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1_000))]
    pub results: Vec<AgentRunResult>,
}

/// Response of `POST /host/v1/run/results`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AppendedResults {
    /// All results up to this `sequence` are stored.
    pub accepted_through: u64,
}

/// Response of `POST /host/v1/run/heartbeat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunHeartbeat {
    /// All results up to this `sequence` are stored. A restarted runner continues after it.
    pub accepted_through: u64,
    /// Expiry of the run's lease, in epoch seconds. The run ends at this time without further results or
    /// heartbeats.
    pub lease_expires_at: i64,
    /// True if the run must end: send the remaining results within the grace period.
    pub cancel_requested: bool,
}
