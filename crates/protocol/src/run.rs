//! The run ledger as callers see it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::id::{AgentId, RunId, RunnerId};

/// Where a run stands. The last four are terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RunStatus {
    Created,
    Queued,
    Claimed,
    Running,
    Completed,
    Failed,
    Cancelled,
    Timeout,
}

impl RunStatus {
    /// Every status.
    pub const ALL: [Self; 8] = [
        Self::Created,
        Self::Queued,
        Self::Claimed,
        Self::Running,
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Timeout,
    ];

    /// The name on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Queued => "queued",
            Self::Claimed => "claimed",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
        }
    }

    /// The status of that name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// True when nothing comes after it.
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Cancelled | Self::Timeout
        )
    }
}

/// One run, as the ledger has it. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRun {
    pub run_id: RunId,
    pub event_id: String,
    pub agent_id: AgentId,
    pub runner_id: RunnerId,
    pub conversation_id: Option<String>,
    pub thread_id: Option<String>,
    pub bot_id: Option<String>,
    pub workspace_id: String,
    pub status: RunStatus,
    pub status_reason: Option<String>,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub finished_at: Option<i64>,
    pub deadline_at: Option<i64>,
    pub cancel_requested_at: Option<i64>,
    pub dispatch_attempts: i64,
    /// The sequence of the newest ledger event, 0 before the first.
    pub last_sequence: u64,
    /// The assistant message, or null.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub output: Option<Value>,
    /// `{code, message, retryable}` of a run that did not complete.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub error: Option<Value>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub usage: Option<Value>,
    /// `rejected`, `duplicates` and `gaps`: what the runner sent that was not taken as it stood.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// One event of the ledger: an accepted result, or the gateway's own `run.failed`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRunEvent {
    pub run_id: RunId,
    /// 1..n without a hole.
    pub sequence: u64,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub usage: Option<Value>,
    /// Epoch seconds.
    pub created_at: i64,
    /// `runner` or `host`.
    pub source: String,
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// A page of any list. Cursors are opaque; null means there is no such page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next_cursor: Option<String>,
    pub prev_cursor: Option<String>,
    pub has_more: bool,
    /// How many items there are on all pages, where a list says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_count: Option<u64>,
}
