//! Tools, called and looked after (`/host/v1/tools`, `/v1/mcp-servers`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::resources::{EffectSource, ToolEffect, ToolResource};

/// The answer of `GET /host/v1/tools`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolList {
    pub tools: Vec<ToolResource>,
}

/// The answer of `GET /host/v1/tools/{name}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolDetail {
    pub tool: ToolDescription,
}

/// What a model is told of a tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolDescription {
    pub name: String,
    pub description: String,
    /// The JSON schema of the parameters.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: JsonObject,
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

/// The body of `POST /host/v1/tools/{name}/call`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct CallTool {
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: JsonObject,
}

/// The header of a tool call that names which runs share its `Idempotency-Key`.
pub const KEY_SCOPE_HEADER: &str = "idempotency-key-scope";

/// Which runs share the `Idempotency-Key` of a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyScope {
    /// The run that makes the call.
    #[default]
    Run,
    /// Every run of the same conversation and agent.
    Conversation,
}

impl KeyScope {
    /// The name in the header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Conversation => "conversation",
        }
    }

    /// The scope of that name.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Run, Self::Conversation]
            .into_iter()
            .find(|scope| scope.as_str() == text)
    }
}

/// The answer of `POST /host/v1/tools/{name}/call`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCallResult {
    /// Of an HTTP tool: its answer. Of an MCP tool: the text, when it says one text and nothing else;
    /// otherwise `{"content", "structured_content"?, "is_error"?}` with the blocks of MCP. Of one that is
    /// larger than 256 KiB: `{"truncated": true, "bytes", "preview", "artifact_id"?}`. Under that id all of it
    /// can be read as an artifact of the run (`GET /host/v1/artifacts/{artifact_id}/content`); there is none where
    /// the run may not read artifacts, or this one could not be kept.
    pub result: Value,
}

/// Whether an MCP server can be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum McpServerState {
    /// It has not answered yet.
    Connecting,
    Ready,
    /// It cannot be reached; it is tried again. Its tools stay listed as they were.
    Away,
}

/// An MCP server of the configuration, as it stands on this replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct McpServer {
    pub name: String,
    /// `streamable_http` or `stdio`.
    pub transport: String,
    pub state: McpServerState,
    /// Since when, in epoch milliseconds.
    pub since: i64,
    /// The tools that it serves, by the names that agents grant.
    pub tools: Vec<String>,
    /// Tools of its list that are not served, each with the reason; the first 50.
    pub left_out: Vec<String>,
    /// What of its messages departs from the protocol and was accepted; the first 50.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Why it cannot be called; absent while it can.
    pub last_error: Option<String>,
}
