//! The run ledger as callers see it.

use crate::JsonObject;
use crate::id::{AgentId, RunId, RunnerId};
use crate::raw::RawJson;
use serde::{Deserialize, Serialize};

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
    /// The row number in a host that numbers its rows; absent here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    pub run_id: RunId,
    pub event_id: String,
    pub agent_id: AgentId,
    /// The run that started this one as its child run. Absent for a run that an event started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The id of the binding where that is not the agent itself; absent here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding_id: Option<String>,
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
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<i64>,
    pub deadline_at: Option<i64>,
    pub cancel_requested_at: Option<i64>,
    pub dispatch_attempts: i64,
    /// The queue that the run waits in, for workers that pull.
    #[serde(flatten)]
    pub claim: RunClaim,
    /// The sequence of the newest ledger event, 0 before the first.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub last_sequence: u64,
    /// The last message of the run, or null. Of a run that said several, `message_count` says how many; each is an item of
    /// the transcript, the first 99 and the last one where there are more than 100.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub output: Option<RawJson>,
    /// `{code, message, retryable}` of a run that did not complete.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub error: Option<RawJson>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    #[serde(default, deserialize_with = "crate::raw::object_if_any")]
    pub usage: Option<RawJson>,
    /// What the run cost, where somebody prices usage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub cost: Option<JsonObject>,
    /// `rejected`, `duplicates` and `gaps`: what the runner sent that was not taken as it stood.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(deserialize_with = "crate::raw::object")]
    pub metadata: RawJson,
}

/// How a run stands in a queue that workers pull from. All absent for a run that is dispatched.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RunClaim {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_name: Option<String>,
    /// The higher comes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The one runtime that may claim the run, when not any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_runtime_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_by_runtime_id: Option<String>,
    /// What the claiming runtime proves its claim by: a secret, in the answer to the claim alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_token: Option<String>,
    /// Epoch seconds; from then on others may claim the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_lease_expires_at: Option<i64>,
    /// Epoch seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_claimed_at: Option<i64>,
}

impl std::fmt::Debug for RunClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunClaim")
            .field("queue_name", &self.queue_name)
            .field("claimed_by_runtime_id", &self.claimed_by_runtime_id)
            .field(
                "claim_token",
                &self.claim_token.as_ref().map(|_| "[redacted]"),
            )
            .finish_non_exhaustive()
    }
}

/// One event of the ledger: an accepted result, or the gateway's own: `run.failed`, or a `processor.log` that says how the
/// runner's answer departs from the protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRunEvent {
    /// The row number in a host that numbers its rows; absent here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
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
    pub usage: Option<JsonObject>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_token_is_never_printed() {
        let claim = RunClaim {
            queue_name: Some("nightly".to_owned()),
            claim_token: Some("secret-7".to_owned()),
            ..RunClaim::default()
        };
        let printed = format!("{claim:?}");
        assert!(printed.contains("nightly") && printed.contains("[redacted]"));
        assert!(!printed.contains("secret-7"));
    }
}
