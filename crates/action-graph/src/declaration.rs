//! Declarations: one model output in the form that both carriers share.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::action::Action;
use crate::diagnostic::Diagnostic;
use crate::ids::{ActionId, GraphId};
use crate::policy::{Policies, ResultPolicy};
use crate::reference::Reference;

/// Name of the one tool that carries declarations.
pub const CARRIER: &str = "AgentProtocolOutput";

/// A declaration, parsed and normalised.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Declaration {
    /// Major version of the protocol: 1.
    pub version: u16,
    /// Requested operation.
    pub intent: Intent,
    /// True if state is stored before anything runs; `None`: not requested.
    pub persist: Option<bool>,
    /// Short label.
    pub title: String,
    /// Text for the user: an answer, or a word before the work.
    pub message: String,
    /// `user.visible`, or the message of an act.
    pub note: String,
    /// Durability, order and concurrency.
    pub execution: Execution,
    /// Result policy of actions that give none.
    pub response_policy: Option<ResultPolicy>,
    pub payload: Payload,
    /// Reserved policies and unknown fields.
    pub policies: Policies,
    /// The graph that a revision changes.
    pub base: Option<GraphId>,
    /// Result of a delegated run.
    pub outcome: ReplyOutcome,
    /// Raw text, hashes and sections.
    pub source: DeclarationSource,
}

impl Declaration {
    /// A declaration with this content and defaults for the rest.
    pub fn new(intent: Intent, payload: Payload) -> Self {
        Self {
            version: 1,
            intent,
            persist: None,
            title: String::new(),
            message: String::new(),
            note: String::new(),
            execution: Execution::default(),
            response_policy: None,
            payload,
            policies: Policies::default(),
            base: None,
            outcome: ReplyOutcome::Ok,
            source: DeclarationSource::default(),
        }
    }

    /// Its actions; empty for other payloads.
    pub fn actions(&self) -> &[Action] {
        match &self.payload {
            Payload::ActionGraph { actions, .. } => actions,
            _ => &[],
        }
    }

    pub(crate) fn actions_mut(&mut self) -> &mut [Action] {
        match &mut self.payload {
            Payload::ActionGraph { actions, .. } => actions,
            _ => &mut [],
        }
    }

    /// True if accepting it makes a graph.
    pub fn makes_graph(&self) -> bool {
        matches!(self.intent, Intent::Execute | Intent::Plan)
            && matches!(self.payload, Payload::ActionGraph { .. })
    }
}

words! {
    /// Operation that a declaration requests.
    pub enum Intent {
        /// Run the graph.
        Execute = "execute",
        /// Store the graph; run nothing.
        Plan = "plan",
        /// Show more of stored results.
        ExpandRef = "expand_ref",
        /// Cancel a graph or an action.
        Cancel = "cancel",
        /// Replace actions that have not started.
        Revise = "revise",
        /// Decide about a failed or blocked action.
        Decide = "decide",
        /// Answer the user; only by the carrier.
        Respond = "respond",
        /// End the turn; only by the carrier.
        Stop = "stop",
    }
}

impl Intent {
    /// The intents of the full DSL.
    pub const FULL: [Self; 6] = [
        Self::Execute,
        Self::Plan,
        Self::ExpandRef,
        Self::Cancel,
        Self::Revise,
        Self::Decide,
    ];
}

/// Durability, order and concurrency of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    /// Durability of its state.
    pub mode: Durability,
    /// Order of its actions.
    pub strategy: Strategy,
    /// Actions at the same time; can only lower the limit.
    pub max_parallel: Option<u8>,
}

words! {
    /// Lifetime of a graph's state.
    #[derive(Default)]
    pub enum Durability {
        /// Lives in one run.
        #[default]
        Ephemeral = "ephemeral",
        /// Survives restarts and runs.
        Durable = "durable",
    }
}

words! {
    /// Order of the actions.
    #[derive(Default)]
    pub enum Strategy {
        /// As the edges allow.
        #[default]
        Dag = "dag",
        /// One at a time.
        Sequential = "sequential",
    }
}

/// The content of a declaration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Payload {
    ActionGraph {
        /// The actions in the order of their declaration.
        actions: Vec<Action>,
        /// A report that ends the run without a further model call.
        report: Option<ReportSpec>,
    },
    /// Requests for more of stored results.
    ExpandRef { refs: Vec<ExpandItem> },
    /// A decision about a graph.
    Decision(GraphDecision),
    /// A report over results.
    FinalReportSpec(ReportSpec),
    /// Text of an answer or an end.
    Message {
        /// Markdown.
        text: String,
    },
}

/// One request for more of a stored result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpandItem {
    pub reference: Reference,
    /// Reason that the model gives.
    pub reason: String,
    pub range: Range,
}

/// Requested part of a text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    /// Windows around matches of `match` or of words of the reason.
    #[serde(default)]
    pub around_matches: bool,
    /// Lines around a match, at most 200.
    #[serde(default)]
    pub context_lines: u16,
    /// The text to look for.
    #[serde(default, rename = "match")]
    pub pattern: Option<String>,
    /// First line, from 1.
    #[serde(default)]
    pub from: Option<u32>,
    #[serde(default)]
    pub lines: Option<u32>,
}

/// A decision about a graph or one of its actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphDecision {
    pub graph: GraphId,
    /// The action; absent for the complete graph.
    pub action: Option<ActionId>,
    pub choice: DecisionChoice,
    /// Reason that the model gives.
    pub reason: String,
    /// Replaces the input of a retried action.
    pub input: Option<Map<String, Value>>,
}

words! {
    /// Choices of a decision.
    pub enum DecisionChoice {
        /// Run a failed action again.
        Retry = "retry",
        /// Continue without it; an uncertain effect did not happen.
        Skip = "skip",
        /// Continue as if it had succeeded; an uncertain effect happened.
        Continue = "continue",
        /// End the graph as failed.
        Abort = "abort",
        /// Cancel the graph or the action.
        Cancel = "cancel",
        /// Evaluate blocked actions again.
        Resume = "resume",
        /// Start a planned graph.
        Execute = "execute",
    }
}

/// A report made of texts and results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSpec {
    /// Heading of the report.
    pub title: String,
    pub sections: Vec<ReportSection>,
    /// Closing line.
    pub footer: String,
}

/// One section of a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportSection {
    pub heading: String,
    pub body: ReportBody,
    /// True if the report is complete without it.
    pub optional: bool,
}

/// The body of a section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportBody {
    Text(String),
    Ref(Reference),
}

words! {
    /// Result of a delegated run.
    #[derive(Default)]
    pub enum ReplyOutcome {
        /// The work is done.
        #[default]
        Ok = "ok",
        /// The work could not be done.
        NotDone = "not_done",
        /// A person must answer first.
        NeedInput = "need_input",
    }
}

/// The form in which a declaration came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeclarationForm {
    /// A call of the carrier.
    #[default]
    Carrier,
    Fenced,
    /// A direct call of a tool.
    RecoveredTool,
    /// A direct call of an agent.
    RecoveredDelegation,
    /// A call written as text.
    RecoveredText,
    Plain,
    /// A workflow of the operator.
    Workflow,
    /// The runtime itself.
    Injected,
}

/// The raw material of a declaration, for records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeclarationSource {
    /// The form in which it came.
    pub origin: DeclarationForm,
    /// SHA-256 of the raw output.
    pub raw_sha256: String,
    /// SHA-256 of the accepted declaration as canonical JSON.
    pub accepted_sha256: String,
    /// SHA-256 over the work only, without titles and reasons.
    pub semantic_sha256: String,
    /// Markdown sections by id.
    pub sections: BTreeMap<String, Section>,
    /// The visible text outside of sections and block; takes no part in execution.
    pub intro: String,
}

/// A declaration that passed every gate.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptedDeclaration {
    /// The declaration; each action is resolved.
    pub declaration: Declaration,
    /// Values of references that are known before anything runs.
    pub constants: BTreeMap<Reference, Value>,
    /// Warnings and repairs.
    pub diagnostics: Vec<Diagnostic>,
    /// The graph whose stored results answer this repetition; nothing runs again.
    pub repeats: Option<GraphId>,
}

/// A Markdown section.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// Its text without the heading.
    pub text: String,
    /// SHA-256 of the text.
    pub sha256: String,
    /// Line of the heading, from 1.
    pub line: u32,
}
