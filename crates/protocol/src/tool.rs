//! Tool calls (`/host/v1/tools`) and MCP server status (`/v1/mcp-servers`).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::resources::{EffectSource, ToolEffect, ToolResource};

/// Response of `GET /host/v1/tools`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolList {
    pub tools: Vec<ToolResource>,
}

/// Response of `GET /host/v1/tools/{name}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolDetail {
    pub tool: ToolDescription,
}

/// A tool's definition for a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolDescription {
    pub name: String,
    pub description: String,
    /// JSON schema of the parameters.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: JsonObject,
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
}

/// Body of `POST /host/v1/tools/{name}/call`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct CallTool {
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: JsonObject,
}

/// Request header with the [`KeyScope`] of a tool call's `Idempotency-Key`.
pub const KEY_SCOPE_HEADER: &str = "idempotency-key-scope";

/// Request header with the answered question that approved a tool call: `{run_id}/{interaction_id}`.
pub const APPROVED_BY_HEADER: &str = "approved-by";

/// Runs that share the `Idempotency-Key` of a tool call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum KeyScope {
    /// The calling run only.
    #[default]
    Run,
    /// All runs of the same conversation and agent.
    Conversation,
}

impl KeyScope {
    /// Returns the name in the header.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Conversation => "conversation",
        }
    }

    /// Parses the name of a scope.
    // No fallback to `run`: a mistyped scope would silently widen or narrow the key.
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Run, Self::Conversation]
            .into_iter()
            .find(|scope| scope.as_str() == text)
    }
}

/// Response of `POST /host/v1/tools/{name}/call`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCallResult {
    /// Result of the call.
    ///
    /// - HTTP tool: its response.
    /// - MCP tool: the text of a single text block. Otherwise `{"content", "structured_content"?, "is_error"?}`
    ///   with the MCP blocks.
    /// - Above 256 KiB: `{"truncated": true, "bytes", "preview", "artifact_id"?}`. Read the complete result by
    ///   `GET /host/v1/artifacts/{artifact_id}/content`. `artifact_id` is absent if the run may not read
    ///   artifacts or storing the result failed.
    pub result: Value,
}

/// Response of `POST /host/v1/tools/{name}/call` with `wait_seconds`, if no person has decided about the call in this time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HeldToolCall {
    pub status: HeldToolCallStatus,
    /// Id of the open question, see `GET /v1/interactions/{interaction}`. Repeat the call to wait for its answer.
    pub interaction_id: String,
}

impl HeldToolCall {
    /// A call that waits for the answer to this question.
    pub fn awaiting(interaction_id: String) -> Self {
        Self {
            status: HeldToolCallStatus::AwaitingApproval,
            interaction_id,
        }
    }
}

/// Status of a call that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum HeldToolCallStatus {
    AwaitingApproval,
}

/// Availability of an MCP server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum McpServerState {
    /// The server has not answered yet.
    Connecting,
    Ready,
    /// The server is unreachable, and the gateway retries. Its tools stay listed.
    Away,
}

/// A configured MCP server and its status on this replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct McpServer {
    pub name: String,
    /// `streamable_http` or `stdio`.
    pub transport: String,
    pub state: McpServerState,
    /// Start of the current state, in epoch seconds.
    pub since: i64,
    /// Tools of the server, by the names that agents grant.
    pub tools: Vec<String>,
    /// Tools that are not served, each with its reason; the first 50.
    pub left_out: Vec<String>,
    /// Accepted deviations of the server's messages from the protocol; the first 50.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Error that makes the server unavailable. Absent while it is available.
    pub last_error: Option<String>,
}
