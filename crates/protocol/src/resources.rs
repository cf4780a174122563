//! What a run was granted, as the runner sees it in `ctx.resources`.

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::skill::RegisteredSkill;

macro_rules! operations {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        // Not `rename = $text`: a schema derived inside a macro does not see it.
        #[serde(rename_all = "snake_case")]
        pub enum $name { $($variant),+ }

        impl $name {
            /// Every operation, in the protocol's order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The operation of that name.
            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

operations!(
    /// What may be done with a model. Embedding is granted by `invoke`.
    ModelOperation { Invoke = "invoke", Stream = "stream", Rerank = "rerank", CountTokens = "count_tokens" }
);
operations!(
    /// What may be done with a tool.
    ToolOperation { Detail = "detail", Call = "call" }
);
operations!(
    /// What may be done with a knowledge base.
    KnowledgeOperation { List = "list", Retrieve = "retrieve" }
);
operations!(
    /// What may be done with the conversation's history.
    HistoryOperation { Page = "page", Search = "search" }
);
operations!(
    /// What may be done with the event log.
    EventOperation { Get = "get", Page = "page" }
);
operations!(
    /// What may be done with artifacts.
    ArtifactOperation { Metadata = "metadata", Read = "read", Create = "create" }
);
operations!(
    /// Which blob storage may be used.
    StorageArea { Plugin = "plugin", Workspace = "workspace", Binding = "binding" }
);
operations!(
    /// Which files may be read.
    FileOperation { Config = "config", Knowledge = "knowledge" }
);
operations!(
    /// What may be done with interactions.
    InteractionOperation { Request = "request" }
);
operations!(
    /// Operations on another agent: `call` starts child runs of it.
    AgentOperation { Call = "call" }
);
operations!(
    /// Whose state an entry is.
    StateScope {
        Conversation = "conversation",
        Actor = "actor",
        Subject = "subject",
        Runner = "runner",
        Binding = "binding",
    }
);

/// Everything this run may touch: the authorization result, by resource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct AgentResources {
    pub models: Vec<ModelResource>,
    pub tools: Vec<ToolResource>,
    pub knowledge_bases: Vec<KnowledgeBaseResource>,
    pub skills: Vec<SkillResource>,
    /// The agents that the run may start child runs of. Left out when there is none.
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
}

/// A tool, its JSON schema inlined, and the operations granted on it.
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
    /// Who serves it: `http`, `gateway`, or `mcp:` and the name of the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Absent: unknown, to be taken for a write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<ToolEffect>,
    /// True: a repeated call with the same parameters changes nothing more. Absent: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    /// Where `effect` and `idempotent` come from. Absent where neither is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect_source: Option<EffectSource>,
}

/// The source of a tool's `effect` and `idempotent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EffectSource {
    /// The configuration of the gateway.
    Operator,
    /// The annotations of the tool's MCP server, which the operator trusts.
    Server,
}

/// What a call of a tool does to the world, as its operator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolEffect {
    /// Changes nothing: may be called again.
    Read,
    /// Changes something that can be changed back.
    Write,
    /// Changes something for good.
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

/// A skill the run may activate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SkillResource {
    pub skill_name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Which run of this agent wrote it. Absent: the operator did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registered: Option<RegisteredSkill>,
}

/// An agent and the operations granted on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentResource {
    pub agent_id: String,
    /// The agent's name in the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default)]
    pub operations: Vec<AgentOperation>,
}

/// A file of the operator that the run may read as an artifact, as it stands in `files`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileResource {
    /// The artifact's id.
    pub id: String,
    pub name: String,
    pub kind: FileOperation,
    pub mime_type: String,
    pub size: u64,
    /// Lower-case hex.
    pub sha256: String,
}

impl FileResource {
    /// The same as the runner sees it.
    pub fn to_json(&self) -> JsonObject {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::Object(object)) => object,
            _ => JsonObject::new(),
        }
    }
}

/// Which blob storage areas are open.
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
    fn an_operation_has_one_name_in_json_and_in_code() {
        check!(
            ModelOperation,
            ToolOperation,
            KnowledgeOperation,
            HistoryOperation,
            EventOperation,
            ArtifactOperation,
            StorageArea,
            FileOperation,
            InteractionOperation,
            AgentOperation,
            StateScope
        );
        assert_eq!(ModelOperation::parse("CountTokens"), None);
    }
}
