//! Runner manifest, as discovery reads it (`docs/protocol.md`, Discovery).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::RunnerId;
use crate::resources::{
    AgentOperation, ArtifactOperation, EventOperation, FileOperation, HistoryOperation,
    InteractionOperation, KnowledgeOperation, ModelOperation, ScheduleOperation, StateScope,
    StorageArea, ToolOperation,
};
use crate::{JsonObject, PROTOCOL_VERSION};

/// A text in several languages; `en_US` comes first.
pub type I18n = BTreeMap<String, String>;

/// Response of `GET {base}/runners`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerList {
    pub runners: Vec<AgentRunnerManifest>,
}

/// Manifest of a runner: identity, capabilities, upper bound of its grants, and configuration form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRunnerManifest {
    pub id: RunnerId,
    /// Last part of `id`.
    pub name: String,
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    pub label: I18n,
    /// `Runner` for a runner of a plugin. Informative only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub component_kind: Option<String>,
    /// Intended usages of the runner. Informative only. Current SDKs send at least one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usages: Vec<RunnerUsage>,
    /// Event types that the runner handles: `*`, names, or `prefix.*`. Informative only: the `event_types` of
    /// agents select the events.
    #[serde(default = "every_event", skip_serializing_if = "is_every_event")]
    pub supported_event_patterns: Vec<String>,
    #[serde(default = "protocol_version")]
    pub protocol_version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, String>>))]
    pub description: Option<I18n>,
    #[serde(default)]
    pub capabilities: Capabilities,
    #[serde(default)]
    pub permissions: Permissions,
    #[serde(default)]
    pub context: ContextPolicy,
    #[serde(default)]
    pub config_schema: Vec<FormItem>,
    /// Seconds that a resumable runner works on while no gateway is attached. Default: 120.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_within_seconds: Option<u32>,
    /// For display and diagnostics only.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

impl AgentRunnerManifest {
    /// Creates the manifest of a runner without capabilities and permissions.
    pub fn new(id: RunnerId, label: I18n) -> Self {
        Self {
            name: id.runner_name().to_owned(),
            id,
            label,
            component_kind: None,
            usages: Vec::new(),
            supported_event_patterns: every_event(),
            protocol_version: protocol_version(),
            description: None,
            capabilities: Capabilities::default(),
            permissions: Permissions::default(),
            context: ContextPolicy::default(),
            config_schema: Vec::new(),
            resume_within_seconds: None,
            metadata: JsonObject::new(),
        }
    }
}

fn protocol_version() -> String {
    PROTOCOL_VERSION.to_owned()
}

/// Returns the default of `supported_event_patterns`: all events. Serialization omits it.
pub fn every_event() -> Vec<String> {
    vec!["*".to_owned()]
}

fn is_every_event(patterns: &[String]) -> bool {
    // Omitted on the wire, so that older gateways read the manifest unchanged.
    patterns == ["*"]
}

/// Intended usage of a runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunnerUsage {
    /// Answers messages.
    Agent,
    /// Handles other events.
    Event,
}

impl RunnerUsage {
    /// All usages.
    pub const ALL: [Self; 2] = [Self::Agent, Self::Event];

    /// Returns the name on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Event => "event",
        }
    }
}

/// Capabilities of a runner. They grant nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the protocol names them one by one"
)]
pub struct Capabilities {
    pub streaming: bool,
    pub tool_calling: bool,
    pub knowledge_retrieval: bool,
    pub multimodal_input: bool,
    pub event_context: bool,
    pub platform_api: bool,
    pub interrupt: bool,
    pub stateful_session: bool,
    pub self_managed_context: bool,
    pub skill_authoring: bool,
    pub steering: bool,
    pub interactions: bool,
    /// The runner works on while no gateway is attached, and serves `resume_run`.
    pub resumable: bool,
}

impl Default for Capabilities {
    fn default() -> Self {
        Self {
            streaming: false,
            tool_calling: false,
            knowledge_retrieval: false,
            multimodal_input: false,
            // The defaults of the protocol's SDK: absent members mean the same on both sides.
            event_context: true,
            platform_api: false,
            interrupt: false,
            stateful_session: false,
            self_managed_context: true,
            skill_authoring: false,
            steering: false,
            interactions: false,
            resumable: false,
        }
    }
}

/// Upper bound of the grants of every run of this runner: layer `manifest` of the authorization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct Permissions {
    pub models: Vec<ModelOperation>,
    pub tools: Vec<ToolOperation>,
    pub knowledge_bases: Vec<KnowledgeOperation>,
    pub history: Vec<HistoryOperation>,
    pub events: Vec<EventOperation>,
    pub artifacts: Vec<ArtifactOperation>,
    pub storage: Vec<StorageArea>,
    /// Scopes of state. A manifest with `storage` requests all scopes, as in the first form of the protocol.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<StateScope>,
    pub files: Vec<FileOperation>,
    pub platform_api: Vec<String>,
    pub interactions: Vec<InteractionOperation>,
    /// Omitted when empty, for gateways without child runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentOperation>,
    /// Omitted when empty, for gateways without schedules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub schedules: Vec<ScheduleOperation>,
}

/// Preferred context access of the runner. The gateway never inlines history, regardless of this policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "the protocol names them one by one"
)]
pub struct ContextPolicy {
    pub supports_history_pull: bool,
    pub supports_history_search: bool,
    pub supports_artifact_pull: bool,
    pub owns_compaction: bool,
    pub wants_static_context_refs: bool,
}

impl Default for ContextPolicy {
    fn default() -> Self {
        Self {
            // The defaults of the protocol's SDK.
            supports_history_pull: true,
            supports_history_search: false,
            supports_artifact_pull: true,
            owns_compaction: true,
            wants_static_context_refs: true,
        }
    }
}

/// One field of the configuration form for agents that bind this runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FormItem {
    /// `string`, `text`, `integer`, `number`, `boolean`, `select`, `array`, `json`, a selector, or free.
    #[serde(rename = "type")]
    pub kind: String,
    pub name: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = BTreeMap<String, String>))]
    pub label: I18n,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<BTreeMap<String, String>>))]
    pub description: Option<I18n>,
    #[serde(default)]
    pub required: bool,
    #[serde(default)]
    pub default: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Object>>))]
    pub options: Option<Vec<JsonObject>>,
    /// True for a `select` that also accepts values outside its options.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_custom: bool,
    /// Other keys of the form, such as `show_if`; kept for display.
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub further: JsonObject,
}
