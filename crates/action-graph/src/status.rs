//! Bounds of a graph, its stop reason, and its status words.

use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::graph::Millis;
use crate::ids::ActionId;
use crate::node::NodeState;
use crate::rules::StandingApproval;

/// Bounds and approvals of the run that drives the graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSettings {
    /// Actions at the same time.
    pub parallel: u8,
    /// Agents at the same time, those that are waited for included.
    pub agents: u8,
    /// True if the surface can ask the user.
    pub can_ask: bool,
    /// Approvals for the conversation.
    pub standing: Vec<StandingApproval>,
    /// Time that an aborted action has to confirm its end, in milliseconds.
    pub grace_ms: u32,
    /// Longest delay before a retry, in milliseconds.
    pub retry_delay_ms: u32,
    /// Retries by decision, per action.
    pub decisions: u8,
    /// Bytes of an output that are stored.
    pub output_bytes: usize,
    /// Transitions that are kept.
    pub transitions: usize,
}

/// Reason that nothing starts any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopReason {
    /// The user or a parent cancelled it.
    Canceled,
    /// An action with the policy `abort` failed, or a decision aborted the graph.
    Aborted,
    /// Its time is over.
    Deadline,
    /// Its budget is used up: running actions may end.
    Budget,
}

impl StopReason {
    /// The code that canceled actions carry.
    pub fn code(self) -> Code {
        match self {
            Self::Canceled | Self::Aborted => Code::Canceled,
            Self::Deadline => Code::Deadline,
            Self::Budget => Code::BudgetExhausted,
        }
    }
}

/// One change of an action's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Its number, dense from 1.
    pub seq: u64,
    /// Time of the change.
    pub at: Millis,
    /// The action.
    pub id: ActionId,
    /// The attempt.
    pub attempt: u32,
    /// The state before.
    pub from: NodeState,
    /// The state after.
    pub to: NodeState,
    /// Reason of the change, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Code>,
}

/// Status words of a graph (UX-05).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the seven words of the protocol")]
pub enum GraphStatus {
    Pending,
    Running,
    Waiting,
    Blocked,
    Completed,
    Failed,
    Canceled,
}

impl GraphStatus {
    /// The word in projections and transcripts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Blocked => "blocked",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }
}
