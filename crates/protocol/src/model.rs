//! What runners and models exchange through the gateway (`/host/v1/models`), and how their providers stand
//! (`/v1/model-providers`).

use std::collections::BTreeMap;

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
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 10_000))]
    pub messages: Vec<Message>,
    /// At most 512.
    #[cfg_attr(feature = "openapi", schema(max_items = 512))]
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
    /// At most 10,000. An empty list has no tokens.
    #[cfg_attr(feature = "openapi", schema(max_items = 10_000))]
    pub messages: Vec<Message>,
    /// At most 512.
    #[cfg_attr(feature = "openapi", schema(max_items = 512))]
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<LlmTool>,
    /// As in a request to the model. Texts in them are counted; nothing is sent.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extra_args: JsonObject,
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
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 64))]
    pub documents: Vec<String>,
    /// How many to give; all when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u64>,
    /// Further arguments for the provider, by the rules of `invoke`; they do not replace those here.
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub extra_args: JsonObject,
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
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 256))]
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

/// A provider of models, as this replica has met it since it started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelProvider {
    pub name: String,
    /// What it speaks: `openai`, `anthropic` or `scripted`.
    pub kind: String,
    /// Where it is asked; absent for a scripted one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The models of the catalog that are asked there.
    pub models: Vec<String>,
    /// Its keys in the order of the configuration, without what they are.
    pub keys: Vec<ModelProviderKey>,
    /// When it last gave an answer, in epoch milliseconds; a stream counts with its first piece.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success_at: Option<i64>,
    /// When it last gave none, in epoch milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_failure_at: Option<i64>,
    /// What that was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<ModelProviderError>,
    /// Failures since the last answer. Requests that it refused for what stood in them do not count.
    pub consecutive_failures: u64,
    /// Answers that departed from the protocol and were accepted, by the kind of deviation.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub deviations: BTreeMap<String, u64>,
}

/// A key of a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelProviderKey {
    /// Until when others are taken before it, in epoch milliseconds; absent while it is awake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until: Option<i64>,
    /// Why: `upstream_rate_limited` or `upstream_credential`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_because: Option<String>,
}

/// Why a provider gave no answer, without its words: they may repeat what it was asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelProviderError {
    /// As the runner was told.
    pub code: String,
    /// As `details.reason` told it, such as `upstream_credential`.
    pub reason: String,
    /// The HTTP status that it answered, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}
