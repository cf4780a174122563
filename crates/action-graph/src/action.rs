//! Actions: nodes of a graph as declared, with the results of validation.

mod loops;

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub use crate::effect::{Class, Effect, Idempotency};
use crate::ids::ActionId;
use crate::policy::{Policies, ResultPolicy, Visibility};
use crate::reference::Reference;

pub use loops::{ForEach, Repeat, Rest};

/// A semantic unit of work.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Requested executor.
    pub executor: Executor,
    /// Structured values; may hold bindings.
    pub input: Map<String, Value>,
    /// Actions that must succeed first, also those of data edges.
    pub depends_on: Vec<ActionId>,
    /// Background material.
    #[serde(default)]
    pub context_refs: Vec<Reference>,
    /// The task as a longer text.
    #[serde(default)]
    pub prompt_ref: Option<Reference>,
    /// The result that the model wants to see; the graph's default when absent.
    #[serde(default)]
    pub result: Option<ResultPolicy>,
    /// Reaction to a failure.
    #[serde(default)]
    pub failure: FailurePolicy,
    /// Raises the durability of the graph.
    #[serde(default)]
    pub persist: Option<bool>,
    /// Skips the action unless this holds.
    #[serde(default)]
    pub when: Option<Condition>,
    /// Runs it once for each item.
    #[serde(default)]
    pub for_each: Option<ForEach>,
    /// Runs it again until a condition holds.
    #[serde(default)]
    pub repeat: Option<Repeat>,
    /// Effects that the model declares.
    #[serde(default)]
    pub effects: BTreeSet<Effect>,
    /// Resources that it reads and writes.
    #[serde(default)]
    pub resources: Resources,
    /// Longest run of one attempt.
    #[serde(default)]
    pub timeout_ms: Option<u32>,
    /// Policies of this action.
    #[serde(default)]
    pub policies: Policies,
    /// Dependencies that earlier graphs of the conversation have met.
    #[serde(default)]
    pub met: Vec<ActionId>,
    /// JSON pointer of its declaration.
    #[serde(default)]
    pub pointer: String,
    /// Results of validation; absent before.
    #[serde(default)]
    pub resolved: Option<Resolved>,
}

impl Action {
    /// An action with this id and without content.
    pub fn new(id: &str, executor: Executor) -> Self {
        Self {
            id: id.into(),
            title: String::new(),
            description: String::new(),
            reason: String::new(),
            operation: String::new(),
            executor,
            input: Map::new(),
            depends_on: Vec::new(),
            context_refs: Vec::new(),
            prompt_ref: None,
            result: None,
            failure: FailurePolicy::default(),
            persist: None,
            when: None,
            for_each: None,
            repeat: None,
            effects: BTreeSet::new(),
            resources: Resources::default(),
            timeout_ms: None,
            policies: Policies::default(),
            met: Vec::new(),
            pointer: String::new(),
            resolved: None,
        }
    }
}

/// Classes of executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecutorKind {
    /// A bounded function of the host.
    Tool,
    /// A child run of another agent.
    Agent,
    /// A word of the runtime: wait, merge, checkpoint, summarize, expand, decide.
    Runtime,
    /// A question to the user.
    Human,
    /// A named sequence of fixed steps.
    Pipeline,
    /// A named outside service.
    Service,
}

impl ExecutorKind {
    /// All classes, in the order of the specification.
    pub const ALL: [Self; 6] = [
        Self::Tool,
        Self::Agent,
        Self::Runtime,
        Self::Human,
        Self::Pipeline,
        Self::Service,
    ];

    /// The name in declarations and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Agent => "agent",
            Self::Runtime => "runtime",
            Self::Human => "human",
            Self::Pipeline => "pipeline",
            Self::Service => "service",
        }
    }

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

/// Policy after a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureMode {
    /// Try again, then do `then`.
    Retry,
    /// Cancel the graph.
    Abort,
    /// Treat the edge as met.
    Continue,
    /// Drain the rest and ask the model.
    #[default]
    AskModel,
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

/// The end of another action that a condition waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names are those of the states")]
pub enum ActionEnding {
    Completed,
    Failed,
    Skipped,
    Blocked,
}

/// A closed test of a value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// The value exists.
    Exists,
    /// It equals this.
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
    Ending {
        /// The other action.
        action: ActionId,
        /// Its end.
        is: ActionEnding,
    },
    /// A value passes a test.
    Value {
        /// The value.
        reference: Reference,
        /// The test.
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
    /// Resources that it reads.
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
    /// Retry class.
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
