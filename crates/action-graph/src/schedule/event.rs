//! Events: input of the scheduler.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::Action;
use crate::code::Code;
use crate::declaration::GraphDecision;
use crate::graph::Millis;
use crate::ids::ActionId;
use crate::node::{ActionOutput, Sent};
use crate::reference::Reference;

/// An event outside of the scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphEvent {
    /// Start the graph, or evaluate it again.
    Begin,
    /// The executor took the attempt.
    Started {
        id: ActionId,
        attempt: u32,
    },
    /// The attempt ended.
    Finished {
        id: ActionId,
        attempt: u32,
        outcome: ActionOutcome,
    },
    /// The attempt continues without the runner's help.
    Suspended {
        id: ActionId,
        attempt: u32,
        on: Suspension,
    },
    /// The runner works on a suspended attempt again.
    Woken {
        id: ActionId,
        attempt: u32,
    },
    /// A timer of [`Command::SetTimer`](crate::schedule::Command::SetTimer) is due.
    TimerFired {
        id: ActionId,
        attempt: u32,
    },
    /// The user approved bound arguments.
    Approved {
        /// The actions, with the hashes that the approval named.
        ids: Vec<(ActionId, String)>,
        /// The question, in the words of the service.
        by: Option<String>,
    },
    /// An approval did not come.
    Denied {
        ids: Vec<ActionId>,
        why: Denial,
    },
    Decide {
        decision: GraphDecision,
        by: Actor,
    },
    /// New actions instead of those that have not started; validated together before.
    Revise {
        /// All actions that shall be pending afterwards.
        actions: Vec<Action>,
        /// Values of their references that are known already.
        constants: BTreeMap<Reference, Value>,
    },
    /// End the graph.
    Cancel,
    /// End one action.
    CancelAction {
        id: ActionId,
    },
    /// Finding of a take-over about an attempt.
    Recovered {
        id: ActionId,
        attempt: u32,
        found: RecoveredAttempt,
    },
    /// The time of the graph is over.
    Deadline,
    /// The budget is used up: running actions may end, others do not start.
    BudgetGone,
}

/// The end of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionOutcome {
    /// It has an output.
    Ok {
        output: ActionOutput,
        /// True if the work was done.
        satisfying: bool,
    },
    Err(ActionFailure),
}

impl ActionOutcome {
    /// The end of work that was done.
    pub fn done(output: ActionOutput) -> Self {
        let satisfying = true;
        Self::Ok { output, satisfying }
    }

    /// A failure that is not tried again.
    pub fn failed(code: Code, message: &str, sent: Sent) -> Self {
        Self::Err(ActionFailure::new(code, message, sent))
    }
}

/// Failure of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionFailure {
    /// The stable name.
    pub code: Code,
    /// Message for the model.
    pub message: String,
    /// Delivery of the call.
    pub sent: Sent,
    /// True if another attempt may succeed.
    pub retryable: bool,
    /// A delay that the executor requests, in milliseconds.
    pub retry_after: Option<u32>,
    /// Random change of the delay in thousandths, −200 to 200, drawn by the caller.
    pub jitter: i16,
}

impl ActionFailure {
    /// A failure that is not tried again.
    pub fn new(code: Code, message: &str, sent: Sent) -> Self {
        Self {
            code,
            message: message.to_owned(),
            sent,
            retryable: false,
            retry_after: None,
            jitter: 0,
        }
    }
}

/// Wait of a suspended attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Suspension {
    User,
    Child {
        run: String,
    },
    /// Something outside that will report.
    External,
    /// A time.
    Timer {
        /// Due time.
        at: Millis,
    },
}

/// Reason for a missing approval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Denial {
    Refused,
    Expired,
    /// No surface can ask.
    Unavailable,
    /// The arguments are longer than a question can show.
    TooLong,
}

/// Source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Actor {
    /// The model.
    Model,
    Human,
    /// A status tool that the operator configured.
    StatusTool,
}

/// Finding of a take-over about an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveredAttempt {
    /// No output is stored.
    Nothing,
    /// Its end is stored, or known.
    Ended(ActionOutcome),
    /// It still runs or waits outside.
    Alive,
    /// The remote system has no record of it.
    Unknown,
}
