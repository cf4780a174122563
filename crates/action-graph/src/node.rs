//! Nodes: the state of one action, its attempts and its output.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::{Action, Class, ExecutorKind};
use crate::code::Code;
use crate::ids::ActionId;
use crate::policy::Visibility;

/// Milliseconds since the epoch, given by the caller.
pub type Millis = u64;

/// Attempts that a node keeps.
const ATTEMPTS: usize = 32;

words! {
    /// Status words of a graph (UX-05).
    pub enum GraphStatus {
        Pending = "pending",
        Running = "running",
        Waiting = "waiting",
        Blocked = "blocked",
        Completed = "completed",
        Failed = "failed",
        Canceled = "canceled",
    }
}

/// The state of an action.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Not started; ready, or waiting for edges, slots or a lane.
    #[default]
    Pending,
    /// An attempt runs.
    Running,
    /// Its instances run.
    FanOut,
    /// It waits for something outside.
    Waiting(Wait),
    /// It cannot start unless a decision changes that.
    Blocked(BlockReason),
    /// The outcome of its effect is unknown.
    Uncertain,
    /// It ended with an output.
    Completed,
    /// It ended with an error.
    Failed,
    /// Its condition did not hold.
    Skipped,
    /// It was cancelled.
    Canceled,
}

/// Event that a suspended action waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    Retry,
    Approval,
    User,
    Child,
    External,
    Timer,
}

/// Reason that an action cannot start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockReason {
    /// A dependency ended without opening its edge.
    Dependency,
    /// A value of its input does not exist.
    Input,
}

impl NodeState {
    /// True if it never changes again by itself or by the model.
    pub fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Completed | Self::Failed | Self::Skipped | Self::Canceled
        )
    }

    pub(crate) fn is_timed(self) -> bool {
        self == Self::Waiting(Wait::Retry)
    }

    /// The word of the projection.
    pub fn status(self) -> GraphStatus {
        match self {
            Self::Pending => GraphStatus::Pending,
            Self::Running | Self::FanOut => GraphStatus::Running,
            Self::Waiting(_) => GraphStatus::Waiting,
            Self::Blocked(_) | Self::Uncertain => GraphStatus::Blocked,
            Self::Completed => GraphStatus::Completed,
            Self::Failed => GraphStatus::Failed,
            Self::Skipped | Self::Canceled => GraphStatus::Canceled,
        }
    }
}

/// Delivery of a call to its executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sent {
    /// It surely was not.
    No,
    /// It may have been: a timeout, or a broken answer.
    Maybe,
    /// It surely was, and its result is known.
    Yes,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionOutput {
    /// A JSON value, or a text.
    pub value: Value,
    /// A summary and its source, where the executor gave one.
    #[serde(default)]
    pub summary: Option<(String, SummarySource)>,
    /// Artifacts by name, with their references.
    #[serde(default)]
    pub artifacts: Vec<(String, String)>,
    /// Size of the complete output in bytes, also when the value is shortened.
    pub bytes: usize,
}

impl ActionOutput {
    /// A JSON output.
    pub fn json(value: Value) -> Self {
        let bytes = match &value {
            Value::String(text) => text.len(),
            other => other.to_string().len(),
        };
        Self {
            value,
            summary: None,
            artifacts: Vec::new(),
            bytes,
        }
    }

    /// A text output. A text that is a JSON object or list is taken as such.
    pub fn text(text: &str) -> Self {
        let bytes = text.len();
        // Only objects and lists: a text such as `12` is meant as a text.
        let is_json = text.trim_start().starts_with(['{', '[']);
        let parsed = is_json
            .then(|| serde_json::from_str::<Value>(text).ok())
            .flatten();
        Self {
            value: parsed.unwrap_or_else(|| text.into()),
            summary: None,
            artifacts: Vec::new(),
            bytes,
        }
    }
}

/// The source of a summary (DSL-98).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SummarySource {
    Tool,
    Mechanical,
    Executor,
    Summarizer,
}

/// An error of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionError {
    /// The stable name.
    pub code: Code,
    /// Message for the model.
    pub message: String,
}

/// One execution of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// Its number, from 1.
    pub n: u32,
    pub key: String,
    /// Start time.
    pub started: Millis,
    /// End time.
    pub ended: Option<Millis>,
    /// Error of a failed attempt.
    pub code: Option<Code>,
    /// Delivery to the executor.
    pub sent: Option<Sent>,
}

/// An item of a fan-out; its value may be `null`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FanOutItem {
    pub value: Value,
}

/// An action with its state. State, satisfying and delivered are independent facts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts of the specification"
)]
pub struct Node {
    pub action: Action,
    /// The fan-out that it belongs to.
    pub parent: Option<ActionId>,
    /// The item of the fan-out.
    pub item: Option<FanOutItem>,
    pub state: NodeState,
    /// Reason of its state.
    pub why: Option<Code>,
    /// True if it opens the edges of others.
    pub satisfying: bool,
    /// True if a decision continued without it.
    pub waived: bool,
    /// The attempt that an observation has shown, per state; later ones are new.
    pub delivered: Option<(u32, NodeState)>,
    /// True if its bound arguments are approved.
    pub cleared: bool,
    /// The question whose answer approved them, in the words of the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_by: Option<String>,
    /// Hash of the arguments that an approval names.
    pub approval: Option<String>,
    /// Number of the last attempt; 0 before the first.
    pub attempt: u32,
    /// Attempts of this iteration.
    pub tries: u8,
    /// Iteration of `repeat`, from 0.
    pub iteration: u8,
    /// Decisions to run it again.
    pub decisions: u8,
    /// True if the next start takes the same attempt again.
    pub resumes: bool,
    /// True if its attempt was requested to end.
    pub aborting: bool,
    /// Items of a fan-out's list after its slice.
    pub left: usize,
    /// Bound arguments.
    pub input: Option<Value>,
    /// Strictest readers of its bound values.
    pub taint: Visibility,
    pub output: Option<ActionOutput>,
    pub error: Option<ActionError>,
    /// Time of a retry.
    pub due: Option<Millis>,
    /// The child run that it waits for.
    pub child: Option<String>,
    /// Its attempts, the last 32.
    pub attempts: Vec<Attempt>,
}

impl Node {
    pub(crate) fn new(action: Action) -> Self {
        Self {
            action,
            ..Self::default()
        }
    }

    /// The same without item, input and output, which have bodies in the stored form.
    pub(crate) fn without_values(&self) -> Self {
        Self {
            action: self.action.clone(),
            parent: self.parent.clone(),
            item: None,
            input: None,
            output: None,
            error: self.error.clone(),
            child: self.child.clone(),
            approval: self.approval.clone(),
            cleared_by: self.cleared_by.clone(),
            attempts: self.attempts.clone(),
            ..*self
        }
    }

    /// Class of its executor.
    pub fn kind(&self) -> ExecutorKind {
        let resolved = self.action.resolved.as_ref();
        resolved.map_or(ExecutorKind::Tool, |one| one.kind)
    }

    /// Name of its executor.
    pub fn target(&self) -> &str {
        let resolved = self.action.resolved.as_ref();
        resolved.map_or("", |one| one.target.as_str())
    }

    /// Its retry class.
    pub fn class(&self) -> Class {
        let resolved = self.action.resolved.as_ref();
        // Without a resolution the strictest class applies.
        resolved.map_or(Class::AtMostOnce, |one| one.class)
    }

    /// True if it runs once for each item of a list.
    pub fn is_fan_out(&self) -> bool {
        self.action.for_each.is_some()
    }

    /// Terminal or blocked.
    pub fn is_settled(&self) -> bool {
        self.state.is_terminal() || matches!(self.state, NodeState::Blocked(_))
    }

    /// True if an attempt is open: started, without a known end.
    pub fn has_open_attempt(&self) -> bool {
        matches!(
            self.state,
            // Waits for a retry or an approval have no attempt.
            NodeState::Running
                | NodeState::Waiting(Wait::User | Wait::Child | Wait::External | Wait::Timer)
        )
    }

    /// Readers of its result: its own and those of the values that went in.
    pub fn visibility(&self) -> Visibility {
        let own = self.action.resolved.as_ref().map(|one| one.visibility);
        // The strictest reader wins: a value that went in may show in the result.
        own.unwrap_or_default().max(self.taint)
    }

    /// True if it ended without opening its edges, so that a decision may help.
    pub fn needs_decision(&self) -> bool {
        let is_end = matches!(self.state, NodeState::Failed | NodeState::Completed);
        is_end && !self.satisfying
    }

    pub(crate) fn push_attempt(&mut self, attempt: Attempt) {
        // The head of a stored graph is bounded, so the oldest attempt goes.
        if self.attempts.len() == ATTEMPTS {
            self.attempts.remove(0);
        }
        self.attempts.push(attempt);
    }

    pub(crate) fn end_attempt(&mut self, now: Millis, code: Option<Code>, sent: Option<Sent>) {
        if let Some(last) = self.attempts.last_mut() {
            last.ended = Some(now);
            last.code = code;
            last.sent = sent;
        }
    }
}
