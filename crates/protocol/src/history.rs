//! The transcript of a conversation.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;

/// One message of a conversation, as history calls give it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TranscriptItem {
    pub transcript_id: String,
    pub event_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    pub conversation_id: Option<String>,
    pub bot_id: Option<String>,
    pub workspace_id: Option<String>,
    pub thread_id: Option<String>,
    /// `user` or `assistant`.
    pub role: String,
    /// `message`.
    pub item_type: String,
    /// The text, at most 4,000 characters; `content_json` has the whole.
    pub content: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub content_json: Option<Value>,
    /// Empty unless asked for.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub attachment_refs: Vec<Value>,
    /// The position in the conversation, from 1.
    pub seq: i64,
    /// The opaque cursor of this item.
    pub cursor: Option<String>,
    /// Epoch seconds.
    pub created_at: i64,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// What a search found, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistorySearchResult {
    pub items: Vec<TranscriptItem>,
    /// The number of `items`.
    pub total_count: u64,
    /// The query, as it was sent.
    pub query: String,
}
