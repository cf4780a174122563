//! `AgentRunContext`: the input of a run at its start (`docs/protocol.md`, Run protocol). It never contains history.

mod inline;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::interaction::{InteractionDeliveryCapabilities, InteractionSubmission};
use crate::message::ContentElement;
use crate::resources::AgentResources;
use crate::retry_origin::RetryOrigin;
use crate::{JsonObject, PROTOCOL_VERSION};

pub use inline::{InlineContextPolicy, InlineMode};

/// The authoritative context of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRunContext {
    pub run_id: String,
    pub trigger: AgentTrigger,
    pub event: AgentEventContext,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<ConversationContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor: Option<ActorContext>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<SubjectContext>,
    pub input: AgentInput,
    pub delivery: DeliveryContext,
    pub resources: AgentResources,
    #[serde(default)]
    pub context: ContextAccess,
    #[serde(default)]
    pub state: AgentRunState,
    pub runtime: AgentRuntimeContext,
    /// Named values from the event source, for prompts. Contains no secrets.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub variables: JsonObject,
    /// The agent's configuration for this runner.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub config: JsonObject,
    /// Values of the entry adapter for this event. Runners must not depend on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterContext>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// Trigger of the run. `timestamp`: epoch seconds of the event, or of its arrival if the event has no time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentTrigger {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub source: TriggerSource,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<i64>,
}

/// The six event sources of the protocol. `pipeline_adapter` is accepted for `host_adapter`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum TriggerSource {
    Platform,
    Webui,
    Api,
    Scheduler,
    System,
    #[default]
    #[serde(alias = "pipeline_adapter")]
    HostAdapter,
}

impl TriggerSource {
    /// Parses the name of a source. Unknown names map to `api`.
    pub fn of(source: &str) -> Self {
        match source {
            "platform" => Self::Platform,
            "webui" => Self::Webui,
            "scheduler" => Self::Scheduler,
            "system" => Self::System,
            "host_adapter" | "pipeline_adapter" => Self::HostAdapter,
            // Sources of clients are free text; all of them come by the API.
            _ => Self::Api,
        }
    }
}

/// The event, without its large parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentEventContext {
    pub event_id: String,
    pub event_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_time: Option<i64>,
    pub source: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_event_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_ref: Option<RawEventRef>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
}

/// Reference to a stored raw payload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RawEventRef {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ref_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_key: Option<String>,
}

/// Conversation of the event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ConversationContext {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sender_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// Actor that caused the event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ActorContext {
    pub actor_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actor_name: Option<String>,
    /// Language of the actor, such as `en_US` or `zh-Hans`; 2–35 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// IANA time zone name of the actor, such as `Europe/Berlin`; 1–64 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
    /// Token of the actor, for tools that are called on its behalf. Only in a posted event, and only with `actor_id`.
    // Never serialized, so it reaches no context, log, table or response. `skip_serializing` would also remove it from
    // the API document.
    #[serde(
        default,
        skip_serializing_if = "is_withheld",
        serialize_with = "withhold"
    )]
    #[cfg_attr(feature = "openapi", schema(write_only))]
    pub credential: Option<Box<ActorCredential>>,
}

fn is_withheld<T>(_: &T) -> bool {
    true
}

fn withhold<T, S: serde::Serializer>(_: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_none()
}

/// Token of an actor. The gateway seals it, uses it while the run lives, and never returns it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ActorCredential {
    /// Token of the authorization server that issues the tokens of the tools; 1–16,384 printable ASCII characters.
    pub token: String,
    #[serde(default, rename = "type")]
    pub kind: CredentialType,
}

/// Type of an actor's token (RFC 8693, section 3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CredentialType {
    #[default]
    AccessToken,
    IdToken,
    Jwt,
}

impl fmt::Debug for ActorCredential {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Written by hand: the derived form would print the token.
        let mut shown = formatter.debug_struct("ActorCredential");
        shown.field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Subject of the event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SubjectContext {
    pub subject_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject_id: Option<String>,
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
}

/// Input of the current event, without history.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct AgentInput {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(deserialize_with = "crate::lists::bounded")]
    pub contents: Vec<ContentElement>,
    #[serde(deserialize_with = "crate::lists::bounded")]
    pub attachments: Vec<InputAttachment>,
    /// The validated answer of `interaction.submitted`. The gateway sets it; clients must not post it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interaction: Option<InteractionSubmission>,
}

/// A file of the event. `id`, or its alias `artifact_id` in a request, refers to an upload. Fields without a
/// value are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct InputAttachment {
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    #[serde(alias = "artifact_id", skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
}

/// Destination of the answer and capabilities of its surface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the protocol names them one by one"
)]
pub struct DeliveryContext {
    /// True if the surface itself sends the run's output, so that the runner need not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub automatic_reply: bool,
    pub surface: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub reply_target: Option<JsonObject>,
    #[serde(default)]
    pub supports_streaming: bool,
    #[serde(default)]
    pub supports_edit: bool,
    #[serde(default)]
    pub supports_reaction: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_message_size: Option<i64>,
    /// Structured questions that the surface can show. Absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interactions: Option<InteractionDeliveryCapabilities>,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub platform_capabilities: JsonObject,
}

impl Default for DeliveryContext {
    fn default() -> Self {
        Self {
            automatic_reply: false,
            surface: "api".to_owned(),
            reply_target: None,
            supports_streaming: true,
            supports_edit: false,
            supports_reaction: false,
            max_message_size: None,
            interactions: None,
            platform_capabilities: JsonObject::new(),
        }
    }
}

/// Inlined parts of the context, omitted parts, and the calls that return the omitted parts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct ContextAccess {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event_seq: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transcript_seq: Option<i64>,
    pub has_history_before: bool,
    pub inline_policy: InlineContextPolicy,
    pub available_apis: AvailableApis,
}

/// Host calls available to this run. `run_append_result` becomes true after the run's POST was answered with
/// 202; see `GET /context`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the protocol names them one by one"
)]
pub struct AvailableApis {
    pub prompt_get: bool,
    pub history_page: bool,
    pub history_search: bool,
    pub event_get: bool,
    pub event_page: bool,
    pub artifact_metadata: bool,
    pub artifact_read: bool,
    pub state: bool,
    pub storage: bool,
    pub steering_pull: bool,
    pub run_get: bool,
    pub run_list: bool,
    pub run_events_page: bool,
    pub run_cancel: bool,
    pub run_append_result: bool,
    pub run_finalize: bool,
    /// Omitted when false, for runners without child runs.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub child_runs: bool,
}

/// State entries at dispatch, at most 100 keys and 256 KiB for each scope. `runtime.metadata.state_incomplete`
/// lists truncated scopes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct AgentRunState {
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub conversation: JsonObject,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub actor: JsonObject,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub subject: JsonObject,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub runner: JsonObject,
    #[serde(skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub binding: JsonObject,
}

/// Execution metadata of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRuntimeContext {
    /// Name of the host: `runnel`.
    #[serde(default = "unknown_host")]
    pub host: String,
    #[serde(default = "protocol_version")]
    pub protocol_version: String,
    /// Version of a LangBot host; absent in Runnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub langbot_version: Option<String>,
    /// W3C trace id: 32 hex digits.
    #[serde(default)]
    pub trace_id: Option<String>,
    /// Deadline of the run, in epoch seconds.
    #[serde(default)]
    pub deadline_at: Option<f64>,
    /// Language of the answer, such as `en_US`: that of the actor, the event or the agent, with `_` between its
    /// parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// IANA time zone name, such as `Europe/Berlin`: that of the actor, the event or the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// Hashes of parts that rarely change, for use as cache keys. They are equal in all runs with equal parts:
    ///
    /// - `prompt_policy`: the agent's `config`, and the effective prompt of the event.
    /// - `tool_schemas`: the granted tools.
    /// - `resource_manifest`: all granted resources, including the tools.
    ///
    /// Empty for a runner whose manifest has `context.wants_static_context_refs` false.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub static_refs: JsonObject,
    /// Checkpoint that the run continues from. Absent in the first attempt, and in one that starts from the event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<RunResume>,
    /// The results after which the run begins. Absent for a run that begins with its event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<RetryOrigin>,
    /// `limits`: the limits that the gateway enforces on this run, in bytes, events and seconds.
    /// `authorization_sha256`: hash of the run's own authorization, as `GET /v1/runs/{id}/authorization` shows it.
    /// `conversation_generation`: set after the conversation began anew, by the agent's `conversation_idle_seconds`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// Checkpoint of a run whose earlier runner process was lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunResume {
    /// Value of the last `PUT /host/v1/checkpoint`.
    pub checkpoint: Value,
    /// Sequence of the last ledger event that stays; 0 for none.
    pub after: u64,
}

fn unknown_host() -> String {
    "langbot".to_owned()
}

fn protocol_version() -> String {
    PROTOCOL_VERSION.to_owned()
}

/// Values of the entry adapter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct AdapterContext {
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extra: serde_json::Map<String, Value>,
}
