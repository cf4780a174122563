//! Actions: nodes of a graph as declared, with the results of validation.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::ActionId;
use crate::policy::{Policies, ResultPolicy, Visibility};
use crate::reference::Reference;

/// Argument of an agent that restricts its rights: lists of `models`, `tools`, `knowledge_bases`, `skills` and
/// `agents`. A tool whose effect needs an approval is given only if `tools` lists it.
pub const AUTHORITY: &str = "authority";

/// A semantic unit of work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Action {
    /// Stable name in its graph.
    pub id: ActionId,
    /// Short label; the id when the model gave none.
    pub title: String,
    /// The work, in a sentence; shown with its result.
    pub description: String,
    /// Reason that the model gives.
    pub reason: String,
    /// The meaning of the work: free text such as `review_code`.
    pub operation: String,
    pub executor: Executor,
    /// Structured values; may hold bindings.
    pub input: Map<String, Value>,
    /// Actions that must succeed first, also those of data edges.
    pub depends_on: Vec<ActionId>,
    /// Background material.
    pub context_refs: Vec<Reference>,
    /// The task as a longer text.
    pub prompt_ref: Option<Reference>,
    /// The result that the model wants to see; the graph's default when absent.
    pub result: Option<ResultPolicy>,
    pub failure: FailurePolicy,
    /// Raises the durability of the graph.
    pub persist: Option<bool>,
    /// Skips the action unless this holds.
    pub when: Option<Condition>,
    /// Runs it once for each item.
    pub for_each: Option<ForEach>,
    /// Runs it again until a condition holds.
    pub repeat: Option<Repeat>,
    /// Effects that the model declares.
    pub effects: BTreeSet<Effect>,
    /// Resources that it reads and writes.
    pub resources: Resources,
    /// Longest run of one attempt.
    pub timeout_ms: Option<u32>,
    pub policies: Policies,
    /// Dependencies that earlier graphs of the conversation have met.
    pub met: Vec<ActionId>,
    /// JSON pointer of its declaration.
    pub pointer: String,
    /// Results of validation; absent before.
    pub resolved: Option<Resolved>,
}

impl Action {
    /// An action with this id and without content.
    pub fn new(id: &str, executor: Executor) -> Self {
        Self {
            id: id.into(),
            executor,
            ..Self::default()
        }
    }
}

words! {
    /// Classes of executors.
    pub enum ExecutorKind {
        /// A bounded function of the host.
        Tool = "tool",
        /// A child run of another agent.
        Agent = "agent",
        /// A word of the runtime: wait, merge, checkpoint, summarize, expand, decide.
        Runtime = "runtime",
        /// A question to the user.
        Human = "human",
        /// A named sequence of fixed steps.
        Pipeline = "pipeline",
        /// A named outside service.
        Service = "service",
    }
}

impl ExecutorKind {
    /// The name in transcripts.
    pub fn label(self) -> &'static str {
        match self {
            Self::Tool => "Tool",
            Self::Agent => "Agent",
            Self::Runtime => "Runtime",
            Self::Human => "Human",
            Self::Pipeline => "Pipeline",
            Self::Service => "Service",
        }
    }
}

/// Requested executor of an action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executor {
    /// The class; absent: the runtime chooses.
    pub kind: Option<ExecutorKind>,
    /// The name; absent for `auto`.
    pub target: Option<String>,
    /// Capabilities that the target must have.
    #[serde(default)]
    pub capabilities: Vec<String>,
}

impl Executor {
    /// A named executor of this class.
    pub fn named(kind: ExecutorKind, target: &str) -> Self {
        Self {
            kind: Some(kind),
            target: Some(target.to_owned()),
            capabilities: Vec::new(),
        }
    }
}

words! {
    /// Reaction to a failure.
    #[derive(Default)]
    pub enum FailureMode {
        /// Try again, then do `then`.
        Retry = "retry",
        /// Cancel the graph.
        Abort = "abort",
        /// Treat the edge as met.
        Continue = "continue",
        /// Drain the rest and ask the model.
        #[default]
        AskModel = "ask_model",
    }
}

/// The failure policy of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailurePolicy {
    /// The first reaction.
    pub mode: FailureMode,
    /// Attempts in all, 1 to 5.
    pub max_attempts: u8,
    /// First delay between attempts; it doubles.
    pub backoff_ms: u32,
    /// The reaction once attempts are used up; never `retry`.
    pub then: FailureMode,
}

impl Default for FailurePolicy {
    fn default() -> Self {
        Self {
            mode: FailureMode::AskModel,
            max_attempts: 1,
            backoff_ms: 500,
            then: FailureMode::AskModel,
        }
    }
}

impl FailurePolicy {
    /// The reaction to a failure that is not tried again.
    pub fn last(&self) -> FailureMode {
        // Retries are used up at this point, so the second policy decides.
        match self.mode {
            FailureMode::Retry => self.then,
            mode => mode,
        }
    }
}

words! {
    /// The end of another action that a condition waits for.
    pub enum ActionEnding {
        Completed = "completed",
        Failed = "failed",
        Skipped = "skipped",
        Blocked = "blocked",
    }
}

/// A closed test of a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    Exists,
    Equals(Value),
    /// It is one of these.
    In(Vec<Value>),
    /// It is a number below this.
    Less(f64),
    /// It is a number above this.
    More(f64),
}

/// A condition: no operators, no nesting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Condition {
    /// Another action ended like this.
    Ending { action: ActionId, is: ActionEnding },
    /// A value passes a test.
    Value {
        reference: Reference,
        test: Test,
        /// Turns the result around.
        negate: bool,
    },
}

impl Condition {
    /// The action that must settle first.
    pub fn waits_for(&self) -> Option<&ActionId> {
        match self {
            // Conditions on constants wait for nothing: their values are known at acceptance.
            Self::Ending { action, .. }
            | Self::Value {
                reference: Reference::Action { id: action, .. },
                ..
            } => Some(action),
            Self::Value { .. } => None,
        }
    }
}

/// Names of resources: files, services, documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resources {
    #[serde(default)]
    pub read: Vec<String>,
    /// Resources that it writes: two actions with a common one never run together.
    #[serde(default)]
    pub write: Vec<String>,
}

/// Origin of the choice of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChosenBy {
    /// The model named it.
    Model,
    /// The runtime matched it.
    Runtime,
    /// A table of the operator replaced it.
    Policy,
}

/// Decisions of the validation about an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// Class of the executor.
    pub kind: ExecutorKind,
    /// Its name in the catalogue.
    pub target: String,
    /// Origin of the choice.
    pub chosen_by: ChosenBy,
    /// Union of declared and known effects.
    pub effects: BTreeSet<Effect>,
    pub class: Class,
    /// True if the bound arguments need the user's approval.
    pub approval: bool,
    /// Readers of its result.
    pub visibility: Visibility,
    /// Calls of the target at the same time.
    pub max_parallel: Option<u8>,
    /// Actions that must settle first, without having to succeed.
    pub settles: Vec<ActionId>,
}

/// One run of the action for each item of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ForEach {
    pub items: Reference,
    /// Items at most, 1 to 64.
    pub max: u16,
    /// Failed items that the action survives.
    pub max_failures: u16,
    /// Items before the first one.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from: u32,
    /// Treatment of more items than `max`.
    #[serde(default, skip_serializing_if = "Rest::is_refused")]
    pub rest: Rest,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature of `skip_serializing_if`"
)]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

words! {
    /// Treatment of items after the slice of a `for_each`.
    #[derive(Default)]
    pub enum Rest {
        /// The action fails.
        #[default]
        Refuse = "refuse",
        /// They are left out, and counted.
        Leave = "leave",
    }
}

impl Rest {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the signature of `skip_serializing_if`"
    )]
    fn is_refused(&self) -> bool {
        *self == Self::Refuse
    }
}

/// Bounded repetition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// Iterations at most, 1 to 8.
    pub max: u8,
    /// Ends the repetition.
    pub until: Condition,
    /// Pause between iterations, at most a minute.
    pub delay_ms: u32,
}

words! {
    /// Change that an action makes outside of the graph.
    pub enum Effect {
        None = "none",
        Read = "read",
        Write = "write",
        Send = "send",
        Delete = "delete",
        Purchase = "purchase",
        Publish = "publish",
        External = "external",
        Unknown = "unknown",
    }
}

impl Effect {
    /// True if two actions with it may share a target.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::None | Self::Read)
    }
}

/// Idempotency as configured by the operator or reported by a trusted tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idempotency {
    /// A second call changes nothing.
    Safe,
    /// A second call with the same key changes nothing.
    Keyed,
    /// A second call acts twice.
    Unsafe,
    /// Not known: treated as unsafe.
    #[default]
    Unknown,
}

/// Retry class of an attempt, from the most to the least lenient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// It may run again at any time.
    Replayable,
    /// It may be sent again with the same key.
    Keyed,
    /// It is never sent again after it may have been sent.
    AtMostOnce,
}

impl Class {
    /// The class of these effects with this idempotency.
    // First arm before the others: reading twice is harmless, whatever the tool declares.
    pub fn of(effects: &BTreeSet<Effect>, idempotency: Idempotency) -> Self {
        match idempotency {
            _ if !effects.is_empty() && effects.iter().all(|one| one.is_shared()) => {
                Self::Replayable
            }
            Idempotency::Safe => Self::Replayable,
            Idempotency::Keyed => Self::Keyed,
            // Unknown counts as unsafe: a repeated purchase cannot be undone.
            Idempotency::Unsafe | Idempotency::Unknown => Self::AtMostOnce,
        }
    }
}
