//! Runs and their ledger events, as API callers see them.

use crate::JsonObject;
use crate::id::{AgentId, ApiKeyId, RunId, RunnerId};
use crate::principal::Principal;
use crate::raw::RawJson;
use serde::{Deserialize, Serialize};

/// Status of a run. The last four are terminal.
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
    /// All statuses.
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

    /// Returns the name used on the wire and in the database.
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

    /// Parses the name of a status.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Returns true for a final status.
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Cancelled | Self::Timeout
        )
    }
}

/// A run. Times are epoch seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRun {
    /// Row number in hosts that number their rows; absent in Runnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    pub run_id: RunId,
    pub event_id: String,
    pub agent_id: AgentId,
    /// Current name of the agent. Absent if the agent was deleted, and in the host API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_name: Option<String>,
    /// The begin of the event's input text, at most 200 characters. A longer text ends with `…`. For a child run
    /// whose parent sent a `summary`, the summary. Absent for an event without text or above 256 KiB, and in the
    /// host API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(max_length = 200))]
    pub input_preview: Option<String>,
    /// Parent that started this run as a child run. Absent for a run that an event started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<RunId>,
    /// The ended run of the same event that this run repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<RunId>,
    /// Sequence of the result in the ledger of `retry_of` after which this run begins. Absent for a run that begins
    /// with its event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1))]
    pub retry_from: Option<u64>,
    /// The run that repeats this one. Absent in lists and in the host API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retried_as: Option<RunId>,
    /// Id of the API key that posted the event, answered the question or requested the retry. Absent for child
    /// runs, answers by a link, events that a live run left unpulled, runs of older gateways, and in the host API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub posted_by: Option<ApiKeyId>,
    /// Binding id in hosts whose bindings are not agents; absent in Runnel.
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
    /// Milliseconds from start to end. Absent for a run that has not started or not ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0))]
    pub duration_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<i64>,
    pub deadline_at: Option<i64>,
    pub cancel_requested_at: Option<i64>,
    /// Cause of the cancel request: an API key, an event of the conversation that interrupts the run, a run (itself, a
    /// run of its runner and conversation, or its parent), or a limit of the gateway, named by `status_reason`. Absent
    /// without a request, for runs of older gateways, and in the host API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancelled_by: Option<Principal>,
    pub dispatch_attempts: i64,
    /// Queue state of the run, for pull workers.
    #[serde(flatten)]
    pub claim: RunClaim,
    /// Sequence of the newest ledger event; 0 before the first.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub last_sequence: u64,
    /// Last message of the run, or null. For a run with several messages, `message_count` gives their number.
    /// Each message is a transcript item. Above 100 messages the transcript has the first 99 and the last.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub output: Option<RawJson>,
    /// `{code, message, retryable}` of a run that did not complete.
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub error: Option<RawJson>,
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    #[serde(default, deserialize_with = "crate::raw::object_if_any")]
    pub usage: Option<RawJson>,
    /// Cost of the run, if usage has prices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub cost: Option<JsonObject>,
    /// Counts of deviating results: `rejected`, `duplicates` and `gaps`.
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    #[serde(deserialize_with = "crate::raw::object")]
    pub metadata: RawJson,
}

/// State of a run in a pull queue. All fields are absent for a dispatched run.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RunClaim {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_name: Option<String>,
    /// Higher priorities come first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i64>,
    /// The only runtime that may claim the run. Absent: any runtime.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_runtime_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_by_runtime_id: Option<String>,
    /// Secret that proves the claim of a runtime. Only in the response to the claim.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_token: Option<String>,
    /// Expiry of the claim, in epoch seconds. Other runtimes may claim the run afterwards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_lease_expires_at: Option<i64>,
    /// Time of the last claim, in epoch seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_claimed_at: Option<i64>,
}

impl std::fmt::Debug for RunClaim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The claim token is a credential and must not end in logs.
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

/// One event of the ledger: an accepted result or an event of the gateway. Gateway events are `run.failed`, and
/// `processor.log` with a deviation of the runner's answer from the protocol.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AgentRunEvent {
    /// Row number in hosts that number their rows; absent in Runnel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<i64>,
    pub run_id: RunId,
    /// Position in the ledger: 1..n without gaps.
    pub sequence: u64,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub data: JsonObject,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub usage: Option<JsonObject>,
    /// Creation time, in epoch seconds.
    pub created_at: i64,
    /// `runner` or `host`.
    pub source: String,
    #[serde(default, skip_serializing_if = "JsonObject::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub metadata: JsonObject,
}

/// A page of a list. Cursors are opaque; null means that there is no such page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next_cursor: Option<String>,
    pub prev_cursor: Option<String>,
    pub has_more: bool,
    /// Number of items on all pages. Absent if the list does not count them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_count: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_redacts_claim_token() {
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
