//! Model calls (`/host/v1/models`) and the status of model providers (`/v1/model-providers`).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::message::{LlmTokenUsage, Message, MessageChunk};
use crate::resources::ModelResource;

/// A tool definition for a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LlmTool {
    pub name: String,
    /// Description for users. Not sent to the model.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub human_desc: String,
    /// Description from which the model selects the tool.
    pub description: String,
    /// JSON schema of the arguments.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: JsonObject,
}

/// Body of `POST /host/v1/models/{id}/invoke` and `…/stream`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LlmRequest {
    /// Messages, 1 to 10,000.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 10_000))]
    pub messages: Vec<Message>,
    /// Tools, at most 512.
    #[cfg_attr(feature = "openapi", schema(max_items = 512))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<LlmTool>,
    /// Additional chat completion arguments, such as `temperature`. They do not override the fields of this
    /// object.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extra_args: JsonObject,
    /// Removes the model's reasoning from its text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove_think: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_level: Option<ReasoningLevel>,
}

/// Reasoning effort of a model, if configurable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReasoningLevel {
    ProviderDefault,
    Disabled,
    Enabled,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl ReasoningLevel {
    /// Returns the `reasoning_effort` of chat completions; `None` omits it.
    pub fn effort(self) -> Option<&'static str> {
        match self {
            // An absent member leaves the choice to the provider.
            Self::ProviderDefault => None,
            Self::Disabled => Some("none"),
            // Chat completions have no plain "on", so `enabled` is the middle level.
            Self::Enabled | Self::Medium => Some("medium"),
            Self::Minimal => Some("minimal"),
            Self::Low => Some("low"),
            Self::High => Some("high"),
            Self::Xhigh => Some("xhigh"),
            Self::Max => Some("max"),
        }
    }
}

/// Response of `GET /host/v1/models`: the models granted to the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelList {
    pub models: Vec<ModelResource>,
}

/// Body of `POST /host/v1/models/{id}/count-tokens`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CountTokens {
    /// Messages, at most 10,000. An empty list counts 0 tokens.
    #[cfg_attr(feature = "openapi", schema(max_items = 10_000))]
    pub messages: Vec<Message>,
    /// Tools, at most 512.
    #[cfg_attr(feature = "openapi", schema(max_items = 512))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<LlmTool>,
    /// Arguments as in a model request. Their texts are counted; nothing is sent.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extra_args: JsonObject,
}

/// Response of count-tokens: an upper bound of the model's own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CountedTokens {
    pub tokens: u64,
}

/// Body of `POST /host/v1/models/{id}/rerank`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Rerank {
    pub query: String,
    /// Documents, 1 to 64.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 64))]
    pub documents: Vec<String>,
    /// Maximum number of results. Absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u64>,
    /// Additional provider arguments, with the rules of `invoke`. They do not override the fields of this
    /// object.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extra_args: JsonObject,
}

/// Response of rerank, closest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RerankResults {
    pub results: Vec<RerankResult>,
}

/// Body of `POST /host/v1/models/{id}/embed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Embed {
    /// Texts, 1 to 256.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 256))]
    pub texts: Vec<String>,
}

/// Response of embed: one vector for each text, in request order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Embeddings {
    pub vectors: Vec<Vec<f32>>,
    /// Absent if the model did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<LlmTokenUsage>,
}

/// Response of a model call without streaming.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LlmInvokeResult {
    pub message: Message,
    /// Absent if the model did not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<LlmTokenUsage>,
}

/// One event of a streaming model call: a chunk, the usage, or both. The usage comes at the end. The last chunk
/// has `is_final`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LlmStreamEvent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<MessageChunk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<LlmTokenUsage>,
}

/// Rerank result of one document.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RerankResult {
    /// Index in the request's `documents`, from 0.
    pub index: usize,
    /// Relevance to the query: higher is closer.
    pub relevance_score: f64,
}

/// A model provider and its status on this replica since the start of the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelProvider {
    pub name: String,
    /// Provider protocol: `openai`, `anthropic`, `gemini` or `scripted`.
    pub kind: String,
    /// Base URL of the provider. Absent for a scripted provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Catalog models of this provider.
    pub models: Vec<String>,
    /// Provider keys in configuration order, without their secrets.
    pub keys: Vec<ModelProviderKey>,
    /// Time of the last success, in epoch seconds. A stream succeeds with its first chunk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success_at: Option<i64>,
    /// Time of the last failure, in epoch seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure_at: Option<i64>,
    /// Error of the last failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<ModelProviderError>,
    /// Consecutive failures. Requests that the provider rejected for their content do not count.
    pub consecutive_failures: u64,
    /// Counts of accepted answers that deviated from the protocol, by kind of deviation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deviations: BTreeMap<String, u64>,
}

/// Status of a provider key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelProviderKey {
    /// End of the key's cooldown, in epoch seconds, rounded up. Other keys are preferred until then. Absent for
    /// an active key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until: Option<i64>,
    /// Cause of the cooldown: `upstream_rate_limited` or `upstream_credential`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_because: Option<String>,
}

/// Error of a provider. It omits the provider's message, which may repeat the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelProviderError {
    /// Error code that the runner received.
    pub code: String,
    /// `details.reason` that the runner received, such as `upstream_credential`.
    pub reason: String,
    /// HTTP status of the provider, if it answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}
