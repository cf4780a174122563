//! Commands: requests of the scheduler to the service.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::Effect;
use crate::graph::{Millis, Transition};
use crate::ids::ActionId;
use crate::node::Node;

/// A request to the service. Commands are carried out in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Command {
    /// Show and log a change.
    Note(Transition),
    /// Store the graph before continuing; only durable graphs.
    Persist(PersistLevel),
    /// Ask the executor to end an attempt.
    Abort {
        id: ActionId,
        attempt: u32,
        /// Time to confirm, in milliseconds.
        grace_ms: u32,
    },
    /// Run a tool, word, pipeline or service, after a second check of its arguments.
    Execute(Execute),
    /// Start a child run; its assignment is stored first.
    SpawnChild(Execute),
    /// Ask the user a question; the action waits already.
    Ask(Execute),
    /// Ask for approvals, in one form.
    AskApproval(Vec<ApprovalRequest>),
    /// Call [`GraphEvent::TimerFired`](crate::schedule::GraphEvent::TimerFired) at this time.
    SetTimer {
        id: ActionId,
        attempt: u32,
        at: Millis,
    },
    /// Continue a suspended attempt whose timer is due.
    Resume { id: ActionId, attempt: u32 },
    /// Count something that changed nothing.
    Count(IgnoredEvent),
    /// Nothing moves without the outside: observe and report.
    Quiescent(Why),
}

/// One attempt to carry out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Execute {
    pub id: ActionId,
    pub attempt: u32,
    /// Name of the executor.
    pub target: String,
    /// Bound arguments.
    pub input: Value,
    /// Idempotency key: the same for each retry of a keyed action.
    pub key: String,
    /// Longest run in milliseconds, where the action has a limit of its own.
    pub timeout_ms: Option<u32>,
    /// The question whose answer approved the arguments, in the words of the service.
    pub approved_by: Option<String>,
}

/// One requested approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    pub id: ActionId,
    pub title: String,
    /// Name of the executor.
    pub target: String,
    /// Bound arguments.
    pub input: Value,
    pub effects: Vec<Effect>,
    /// Hash over executor, arguments and effects: the approval covers exactly these.
    pub hash: String,
}

impl ApprovalRequest {
    /// The request of an action that waits for its approval.
    pub fn of(node: &Node) -> Option<Self> {
        let resolved = node.action.resolved.as_ref()?;
        Some(Self {
            id: node.action.id.clone(),
            title: node.action.title.clone(),
            target: resolved.target.clone(),
            input: node.input.clone()?,
            effects: resolved.effects.iter().copied().collect(),
            hash: node.approval.clone()?,
        })
    }
}

/// Reason to store a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PersistLevel {
    /// A state changed.
    Progress,
    /// An effect follows: carry out nothing before it is stored.
    Effect,
    /// All actions are final.
    Closed,
}

/// Events that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IgnoredEvent {
    /// It belongs to an attempt that is over, or to no action.
    Late,
    /// The rules do not allow it.
    Refused,
}

/// Reason that nothing moves: the only moments of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// All actions are settled, and no decision is due.
    Finished,
    /// A decision is due: a failure blocks others, or an effect is uncertain.
    Decide,
    /// An answer of the user is pending.
    UserNeeded,
    /// An approval is pending.
    PermissionNeeded,
    /// A child, a timer or something outside is waited for.
    Waiting,
    /// The graph was stopped, and its running actions ended.
    Canceled,
}
