//! What runners and models exchange through the gateway (`/host/v1/models`).

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::message::{LlmTokenUsage, Message, MessageChunk};
use crate::resources::ModelResource;

/// A tool as a model is told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LlmTool {
    pub name: String,
    /// For people; a model never sees it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub human_desc: String,
    /// By which the model picks the tool.
    pub description: String,
    /// The JSON schema of its arguments.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub parameters: JsonObject,
}

/// The body of `POST /host/v1/models/{id}/invoke` and `…/stream`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct LlmRequest {
    /// 1 to 10,000.
    pub messages: Vec<Message>,
    /// At most 512.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<LlmTool>,
    /// Further arguments of chat completions, such as `temperature`; they do not replace those here.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extra_args: JsonObject,
    /// Takes the model's thinking out of what it says.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove_think: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_level: Option<ReasoningLevel>,
}

/// How much a model shall think, where it lets itself be told.
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
    /// As chat completions call it. `None`: nothing is said about it.
    pub fn effort(self) -> Option<&'static str> {
        match self {
            Self::ProviderDefault => None,
            Self::Disabled => Some("none"),
            Self::Enabled | Self::Medium => Some("medium"),
            Self::Minimal => Some("minimal"),
            Self::Low => Some("low"),
            Self::High => Some("high"),
            Self::Xhigh => Some("xhigh"),
            Self::Max => Some("max"),
        }
    }
}

/// The answer of `GET /host/v1/models`: what the run was granted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelList {
    pub models: Vec<ModelResource>,
}

/// The body of `POST /host/v1/models/{id}/count-tokens`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CountTokens {
    pub messages: Vec<Message>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<LlmTool>,
}

/// Its answer: not fewer than the model will count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CountedTokens {
    pub tokens: u64,
}

/// The body of `POST /host/v1/models/{id}/rerank`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Rerank {
    pub query: String,
    /// 1 to 64.
    pub documents: Vec<String>,
    /// How many to give; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u64>,
}

/// Its answer, the closest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RerankResults {
    pub results: Vec<RerankResult>,
}

/// The body of `POST /host/v1/models/{id}/embed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Embed {
    /// 1 to 256.
    pub texts: Vec<String>,
}

/// Its answer: a vector for each text, in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Embeddings {
    pub vectors: Vec<Vec<f32>>,
    /// Absent when the model did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<LlmTokenUsage>,
}

/// The answer of a model that does not stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LlmInvokeResult {
    pub message: Message,
    /// Absent when the model did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<LlmTokenUsage>,
}

/// One event of a model that streams: a chunk, or at the end the usage, or both.
/// The last chunk has `is_final`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct LlmStreamEvent {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk: Option<MessageChunk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<LlmTokenUsage>,
}

/// Where one document came out when a model ranked several.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RerankResult {
    /// The place in the request's `documents`, from 0.
    pub index: usize,
    /// The higher, the closer to the query.
    pub relevance_score: f64,
}
