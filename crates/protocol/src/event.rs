//! Request and response of `POST /v1/events`: one event and the destination of its answer.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::context::{ActorContext, AgentInput, DeliveryContext, RawEventRef, SubjectContext};
use crate::error::AgentApiError;
use crate::message::Message;

/// Event type of an incoming chat message.
pub const MESSAGE_RECEIVED: &str = "message.received";

/// Body of `POST /v1/events`. Only `event_type` is required; unknown fields are rejected.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EventEnvelope {
    /// Event type, such as `message.received`; 1–128 bytes.
    pub event_type: String,
    /// Client-side event id: 1–512 printable ASCII characters, unique per workspace. Generated when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// Source of the event, free text; default `api`.
    #[serde(default = "default_source")]
    pub source: String,
    /// Name of the event on the platform.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_event_type: Option<String>,
    /// Time of the event, in epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<i64>,
    /// Language of the answer, such as `en_US` or `zh-Hans`, for events whose actor has none; 2–35 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// IANA time zone name, such as `Europe/Berlin`, for events whose actor has none; 1–64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    /// Id of the bot platform's pipeline, which agents match by `filters.pipeline_id`; 1–255 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<EventConversation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<SubjectContext>,
    /// Input for the agent. Required when `event_type` is `message.received`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<AgentInput>,
    #[serde(default)]
    pub delivery: DeliveryContext,
    /// Additional data, at most 64 KiB as JSON.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
    /// Raw payload of the platform: any JSON up to 4 MiB. Stored separately; runners receive a reference to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Value, required = false))]
    pub raw: Option<Value>,
    /// Reference to a raw payload in the client's storage. Excludes `raw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_ref: Option<RawEventRef>,
    /// Set only by adapter routes: a posted envelope must not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub adapter: Option<EventAdapter>,
}

/// Adapter data of an event, stored with the event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventAdapter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_id: Option<String>,
    /// Becomes `ctx.adapter.extra`.
    #[serde(skip_serializing_if = "JsonObject::is_empty")]
    pub extra: JsonObject,
    /// The effective prompt. The runner pulls it; the context does not contain it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<Message>,
}

/// Conversation of an event. Without `conversation_id` the event belongs to no conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EventConversation {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launcher_id: Option<String>,
}

fn default_source() -> String {
    "api".to_owned()
}

/// An event of the log, without its large parts. Absent parts are omitted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentEventRecord {
    pub event_id: String,
    pub event_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<i64>,
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_id: Option<String>,
    /// Text of the input, at most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_summary: Option<String>,
    /// Reference to the complete input, if stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_ref: Option<String>,
    /// Reference to the platform's raw payload, if stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_ref: Option<String>,
    /// Position in the conversation, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Creation time, in epoch seconds.
    pub created_at: i64,
    /// Steering state of an event that an active run absorbed. `steered_into` is the run. `steering.status` is
    /// one of:
    ///
    /// - `queued`: the run has not pulled the event yet.
    /// - `injected`: the run has pulled the event.
    /// - `dropped`: the run ended first; the event gets a run of its own, `steering.run_id`.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// Response to an accepted event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventAccepted {
    pub event_id: String,
    /// The run of the event. Null when no agent matches.
    pub run_id: Option<crate::id::RunId>,
    pub run_url: Option<String>,
    /// `created`, `queued` after other runs, or the status of the run that absorbed the event. Absent without a
    /// run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<crate::run::RunStatus>,
    /// True if an active run absorbed the event: `run_id` is that run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steered: bool,
    /// Last ledger sequence of the run when it absorbed the event. Start an event stream of the answer after it.
    /// Absent unless `steered`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sequence: Option<u64>,
    /// `no_agent` when there is no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Cause of a missing run and the next step, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// Response to a batch of CloudEvents: one item for each event, in the order of the batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventBatchAccepted {
    pub items: Vec<EventBatchItem>,
}

/// Result of one event of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventBatchItem {
    pub event_id: String,
    /// HTTP status that the event would receive in a request of its own.
    pub status: u16,
    /// Response to the event, if accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<EventAccepted>,
    /// True if the event was posted before: `accepted` is the first response.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// Error of a rejected event. Nothing of the event is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AgentApiError>,
}
