//! What runners and models exchange through the gateway (`/host/v1/models`).

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::message::{LlmTokenUsage, Message, MessageChunk};

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
