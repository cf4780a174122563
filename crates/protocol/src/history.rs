//! Transcript of a conversation.

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::raw::RawJson;

/// One message of a conversation, as history calls return it.
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
    /// `user`, `assistant`, or `tool`: a tool result that the runner sent as a message.
    pub role: String,
    /// Always `message`.
    pub item_type: String,
    /// Text, at most 4,000 characters; `content_json` has the complete content.
    pub content: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub content_json: Option<RawJson>,
    /// Attachments, empty unless requested. For a user message: its files. For an assistant message: the
    /// artifacts that its run announced, at most 100. Stored files have the `id` of their artifact.
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub attachment_refs: Vec<RawJson>,
    /// Position in the conversation, from 1.
    pub seq: i64,
    /// Opaque cursor of this item.
    pub cursor: Option<String>,
    /// Creation time, in epoch seconds.
    pub created_at: i64,
    /// `actor` of a user message: `actor_type`, `actor_id` and `actor_name` of its event, if set.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// A conversation and its newest event, as `GET /v1/conversations` lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ConversationSummary {
    pub conversation_id: String,
    /// Null for a conversation without a bot.
    pub bot_id: Option<String>,
    /// Null for a conversation without a thread.
    pub thread_id: Option<String>,
    pub event_count: i64,
    /// Number of messages of its history.
    pub message_count: i64,
    /// True while one of its runs has not ended.
    pub is_busy: bool,
    pub last_event_id: String,
    /// Arrival of the newest event, in epoch seconds.
    pub last_event_at: i64,
    /// The begin of the newest event's input text, at most 200 characters. A longer text ends with `…`. Absent for
    /// an event without text or above 256 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 200))]
    pub input_preview: Option<String>,
}

/// Body of `POST /host/v1/history/search`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HistorySearch {
    /// Words that must all occur, in any order; `"words in quotes"` must be adjacent. At most 1,000 characters
    /// and 64 words.
    #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 1_000))]
    pub query: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filters: Option<HistoryFilters>,
    /// Maximum number of results: 1 to 100, default 10.
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 100))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u64>,
    /// For runs: another conversation, if granted. Default: the run's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// Bot of `conversation_id`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    /// Thread of `conversation_id`, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
}

/// Filters for the items of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct HistoryFilters {
    /// Roles to include. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub roles: Vec<String>,
    /// Item types to include. Empty: all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 16))]
    pub item_types: Vec<String>,
    /// Includes only items before this cursor. Pass the cursor of a result's last item to fetch older items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_cursor: Option<String>,
    /// Includes only items after this cursor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_cursor: Option<String>,
}

/// Search results, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HistorySearchResult {
    pub items: Vec<TranscriptItem>,
    /// Number of `items`.
    pub total_count: u64,
    /// The query as sent.
    pub query: String,
}
