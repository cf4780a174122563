//! The transcript of a conversation.

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::raw::RawJson;

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
    /// `user`, `assistant`, or `tool`: a tool's result that the runner sent as a message.
    pub role: String,
    /// `message`.
    pub item_type: String,
    /// The text, at most 4,000 characters; `content_json` has the whole.
    pub content: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub content_json: Option<RawJson>,
    /// Empty unless asked for. Of a user's message what came with it; of the assistant's the artifacts that its run
    /// announced, 100 at most. What the gateway keeps has the `id` of its artifact.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub attachment_refs: Vec<RawJson>,
    /// The position in the conversation, from 1.
    pub seq: i64,
    /// The opaque cursor of this item.
    pub cursor: Option<String>,
    /// Epoch seconds.
    pub created_at: i64,
    /// `actor` of a user's message: `actor_type`, `actor_id` and `actor_name` of who said it, when its event names one.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// The body of `POST /host/v1/history/search`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HistorySearch {
    /// Words that must all occur, in any order; `"words in quotes"` one right after the other.
    /// At most 1,000 characters and 64 words.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 1_000))]
    pub query: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filters: Option<HistoryFilters>,
    /// 1 to 100, default 10.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u64>,
}

/// Which items of a conversation are searched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HistoryFilters {
    /// Only items of these roles; all when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub roles: Vec<String>,
    /// Only items of these types; all when empty.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub item_types: Vec<String>,
    /// Only items before this one: the last item of a result goes on with what is older.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_cursor: Option<String>,
    /// Only items after this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<String>,
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
