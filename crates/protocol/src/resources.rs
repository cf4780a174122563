//! Resources granted to a run, as `ctx.resources` lists them.

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::skill::RegisteredSkill;

macro_rules! operations {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        // `rename = $text` does not work: a schema derived inside a macro ignores it.
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($variant),+ }

        impl $name {
            /// All operations in protocol order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Returns the name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// Parses the name of an operation.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

operations!(
    /// Operations on a model. `invoke` includes embedding.
    ModelOperation { Invoke = "invoke", Stream = "stream", Rerank = "rerank", CountTokens = "count_tokens" }
);
operations!(
    /// Kinds of input of a model.
    InputModality { Text = "text", Image = "image" }
);
operations!(
    /// Operations on a tool.
    ToolOperation { Detail = "detail", Call = "call" }
);
operations!(
    /// Operations on a knowledge base.
    KnowledgeOperation { List = "list", Retrieve = "retrieve" }
);
operations!(
    /// Operations on the conversation's history.
    HistoryOperation { Page = "page", Search = "search", Workspace = "workspace" }
);
operations!(
    /// Operations on the event log.
    EventOperation { Get = "get", Page = "page" }
);
operations!(
    /// Operations on artifacts.
    ArtifactOperation { Metadata = "metadata", Read = "read", Create = "create" }
);
operations!(
    /// Blob storage areas.
    StorageArea { Plugin = "plugin", Workspace = "workspace", Binding = "binding" }
);
operations!(
    /// Kinds of readable files.
    FileOperation { Config = "config", Knowledge = "knowledge" }
);
operations!(
    /// Operations on interactions.
    InteractionOperation { Request = "request" }
);
operations!(
    /// Operations on another agent. `call` starts child runs of it.
    AgentOperation { Call = "call" }
);
operations!(
    /// Operations on the schedule of the run's agent. `wake` wakes the agent later.
    ScheduleOperation { Wake = "wake" }
);
operations!(
    /// Owner of a state entry.
    StateScope {
        Conversation = "conversation",
        Actor = "actor",
        Subject = "subject",
        Runner = "runner",
        Binding = "binding",
    }
);

/// All resources that this run may use, the result of the authorization.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct AgentResources {
    pub models: Vec<ModelResource>,
    pub tools: Vec<ToolResource>,
    pub knowledge_bases: Vec<KnowledgeBaseResource>,
    pub skills: Vec<SkillResource>,
    /// Agents of which the run may start child runs. Omitted when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agents: Vec<AgentResource>,
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub files: Vec<JsonObject>,
    pub storage: StorageResource,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub platform_capabilities: JsonObject,
}

/// A model and the operations granted on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelResource {
    pub model_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    #[serde(default)]
    pub operations: Vec<ModelOperation>,
    /// Kinds of input that the model accepts. Empty: unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_modalities: Vec<InputModality>,
}

impl ModelResource {
    /// Returns true if the model accepts images or its input kinds are unknown.
    pub fn accepts_images(&self) -> bool {
        // Unknown kinds count as accepted: a catalog without this setting must not lose its images.
        self.input_modalities.is_empty() || self.input_modalities.contains(&InputModality::Image)
    }
}

/// A tool, its inlined JSON schema, and the operations granted on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolResource {
    pub tool_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default)]
    pub operations: Vec<ToolOperation>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub parameters: Option<JsonObject>,
    /// Origin of the tool: `http`, `gateway`, or `mcp:` and the server name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Effect of a call. Absent: unknown; treat it as a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<ToolEffect>,
    /// True if a repeated call with the same parameters has no further effect. Absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// Source of `effect` and `idempotent`. Absent if both are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect_source: Option<EffectSource>,
    /// `ask`: a call waits for an approval. Absent: calls need none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<ToolApproval>,
}

/// Approval that the calls of a tool need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolApproval {
    /// A person decides, unless an approval covers the call.
    Ask,
}

/// Source of a tool's `effect` and `idempotent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EffectSource {
    /// The gateway's configuration.
    Operator,
    /// Annotations of the tool's MCP server, which the operator trusts.
    Server,
}

/// Effect of a tool call, as the operator declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolEffect {
    /// Read-only: can be repeated safely.
    Read,
    /// Reversible change.
    Write,
    /// Irreversible change.
    Irreversible,
}

/// A knowledge base and the operations granted on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KnowledgeBaseResource {
    pub kb_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kb_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kb_type: Option<String>,
    #[serde(default)]
    pub operations: Vec<KnowledgeOperation>,
}

/// A skill that the run may activate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SkillResource {
    pub skill_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Run of this agent that registered the skill. Absent for skills of the operator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<RegisteredSkill>,
}

/// An agent and the operations granted on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentResource {
    pub agent_id: String,
    /// Name of the agent in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default)]
    pub operations: Vec<AgentOperation>,
}

/// An entry of `files`: a file of the operator that the run may read as an artifact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileResource {
    /// Artifact id.
    pub id: String,
    pub name: String,
    pub kind: FileOperation,
    pub mime_type: String,
    pub size: u64,
    /// SHA-256, lower-case hex.
    pub sha256: String,
}

impl FileResource {
    /// Returns the JSON that the runner receives.
    pub fn to_json(&self) -> JsonObject {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(object)) => object,
            // A structure always serializes to an object.
            _ => JsonObject::new(),
        }
    }
}

/// Granted blob storage areas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct StorageResource {
    pub plugin_storage: bool,
    pub workspace_storage: bool,
    pub binding_storage: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    macro_rules! check {
        ($($name:ident),+) => {
            $(for one in $name::ALL {
                assert_eq!(serde_json::to_value(one).unwrap(), one.as_str());
                assert_eq!($name::parse(one.as_str()), Some(*one));
            })+
        };
    }

    #[test]
    fn operation_names_match_in_json_and_code() {
        check!(
            ModelOperation,
            InputModality,
            ToolOperation,
            KnowledgeOperation,
            HistoryOperation,
            EventOperation,
            ArtifactOperation,
            StorageArea,
            FileOperation,
            InteractionOperation,
            AgentOperation,
            ScheduleOperation,
            StateScope
        );
        assert_eq!(ModelOperation::parse("CountTokens"), None);
    }
}
