//! What a client posts: one event and where its answer goes (`POST /v1/events`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::context::{ActorContext, AgentInput, DeliveryContext, RawEventRef, SubjectContext};
use crate::error::AgentApiError;
use crate::message::Message;

/// The event type of an incoming chat message.
pub const MESSAGE_RECEIVED: &str = "message.received";

/// The envelope of `POST /v1/events`. Only `event_type` is required; unknown fields are refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EventEnvelope {
    /// A stable protocol name such as `message.received`; 1–128 bytes.
    pub event_type: String,
    /// The client's own id: 1–512 printable ASCII characters, unique per workspace. Made when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// Free text; default `api`.
    #[serde(default = "default_source")]
    pub source: String,
    /// The platform's own name of the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_event_type: Option<String>,
    /// Epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<EventConversation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<SubjectContext>,
    /// Required when `event_type` is `message.received`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<AgentInput>,
    #[serde(default)]
    pub delivery: DeliveryContext,
    /// At most 64 KiB as JSON.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
    /// The platform's own payload, any JSON up to 4 MiB. Kept apart: runners get a reference to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Value, required = false))]
    pub raw: Option<Value>,
    /// Where the client itself keeps the platform's payload; not beside `raw`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_ref: Option<RawEventRef>,
    /// Written by the route of an adapter alone: a posted envelope must not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(ignore))]
    pub adapter: Option<EventAdapter>,
}

/// What an entry adapter knows of an event beside the event itself, as it is stored with it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct EventAdapter {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_id: Option<String>,
    /// Becomes `ctx.adapter.extra`.
    #[serde(skip_serializing_if = "JsonObject::is_empty")]
    pub extra: JsonObject,
    /// The effective prompt: pulled by the runner, never in its context.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prompt: Vec<Message>,
}

/// The conversation an event belongs to. Without `conversation_id` it belongs to none.
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

/// An event of the log, without its large parts. Absent parts are left out.
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
    /// The text of the input, at most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_summary: Option<String>,
    /// Where the whole input is kept, when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_ref: Option<String>,
    /// Where the platform's raw payload is kept, when it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_ref: Option<String>,
    /// The place in its conversation, from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Epoch seconds.
    pub created_at: i64,
    /// Of an event that a live run absorbed: `steered_into`, the run, and `steering.status`: `queued`,
    /// `injected` once the run has pulled it, or `dropped` at its end: it then gets a run of its own, `steering.run_id`.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// The answer to an accepted event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventAccepted {
    pub event_id: String,
    /// Null when no agent wants the event.
    pub run_id: Option<crate::id::RunId>,
    pub run_url: Option<String>,
    /// `created`, `queued` behind other runs, or that of the run which absorbed the event; absent without a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<crate::run::RunStatus>,
    /// True when a live run has absorbed the event: `run_id` is that run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub steered: bool,
    /// Where the run stood when it took the event in: a stream of the answer begins behind this event of its ledger.
    /// Absent unless `steered`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sequence: Option<u64>,
    /// `no_agent` when there is no run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer to a batch of CloudEvents: what became of each, in the order of the batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventBatchAccepted {
    pub items: Vec<EventBatchItem>,
}

/// What became of one event of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventBatchItem {
    pub event_id: String,
    /// The HTTP status that the event would have had alone.
    pub status: u16,
    /// The answer, when it was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted: Option<EventAccepted>,
    /// True when the same event came before: `accepted` is the first answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
    /// Why it was not taken. Nothing of it is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<AgentApiError>,
}
