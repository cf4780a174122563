//! Output of `runnel graph`.

use action_graph::accept::Repair;
use action_graph::code::Severity;
use action_graph::declaration::Declaration;
use action_graph::diagnostic::Diagnostic;
use action_graph::graph::{GraphStatus, Transition};
use action_graph::node::{NodeState, Wait};
use action_graph::record::{Metrics, result_record};
use action_graph::report::render_report;
use action_graph::result::observe::ObservationBudget;
use action_graph::result::tokens::estimate;
use action_graph::schedule::Why;
use action_graph::transcript::{TranscriptTurn, notice, protocol_turn, render};
use serde_json::{Value, json};

use crate::graph::execute::ExecutedGraph;

/// Context window of the assumed model, in tokens.
const WINDOW: usize = 128_000;

/// `error bad_id at /calls/0/id: message. Fix: hint`.
pub(super) fn diagnostic_line(diagnostic: &Diagnostic) -> String {
    let level = match diagnostic.level {
        Severity::Error => "error",
        Severity::Warning => "warning",
        Severity::Info => "info",
    };
    let location = match diagnostic.pointer.as_str() {
        "" => "the output",
        pointer => pointer,
    };
    format!(
        "{level} {} at {location}: {}",
        diagnostic.code.as_str(),
        diagnostic.line()
    )
}

pub(super) fn lint_summary(verdict: &str, diagnostics: &[Diagnostic]) -> String {
    let count = |level| diagnostics.iter().filter(|one| one.level == level).count();
    format!(
        "{verdict} (errors: {}, warnings: {})",
        count(Severity::Error),
        count(Severity::Warning)
    )
}

/// `    3 ms  read    running -> completed`.
pub(super) fn transition_line(transition: &Transition) -> String {
    let (from, to) = (word(transition.from), word(transition.to));
    let mark = mark(transition.to);
    let why = transition.why.map(|code| format!(" ({})", code.as_str()));
    format!(
        "{mark} {:>6} ms  {}  {from} -> {to}{}",
        transition.at,
        transition.id,
        why.unwrap_or_default()
    )
}

fn mark(state: NodeState) -> char {
    match state {
        NodeState::Completed => '✓',
        NodeState::Failed | NodeState::Blocked(_) => '✗',
        NodeState::Running | NodeState::FanOut => '▸',
        NodeState::Waiting(Wait::User | Wait::Approval) | NodeState::Uncertain => '?',
        NodeState::Skipped | NodeState::Canceled => '-',
        NodeState::Pending | NodeState::Waiting(_) => '…',
    }
}

/// Label of a state, more precise than the seven statuses of the projection.
fn word(state: NodeState) -> String {
    match state {
        NodeState::Uncertain => "uncertain".to_owned(),
        NodeState::Skipped => "skipped".to_owned(),
        NodeState::Waiting(wait) => format!("waiting for {}", name(&json!(wait))),
        NodeState::Blocked(block) => format!("blocked by {}", name(&json!(block))),
        _ => state.status().as_str().to_owned(),
    }
}

fn name(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn budget() -> ObservationBudget<'static> {
    ObservationBudget {
        window: WINDOW,
        count: &estimate,
    }
}

/// The turn of a refused output.
pub(super) fn notice_turn(repair: &Repair) -> String {
    render(&[TranscriptTurn::Notice(notice(repair))])
}

/// The turn of an output without a graph.
pub(super) fn message_turn(declaration: &Declaration) -> String {
    let text = declaration.message.clone();
    render(&[TranscriptTurn::Answer { text }])
}

/// The turns of a graph: the user's request if the script has one, then the declaration with its observations.
pub(super) fn graph_turn(played: &ExecutedGraph, goal: &str) -> String {
    let user = (!goal.is_empty()).then(|| TranscriptTurn::User {
        text: goal.to_owned(),
        attachments: Vec::new(),
    });
    let why = played.why.unwrap_or(Why::Waiting);
    let turn = TranscriptTurn::Protocol(protocol_turn(&played.graph, why, budget()));
    render(&user.into_iter().chain([turn]).collect::<Vec<_>>())
}

/// The record `agent.protocol.result`.
pub(super) fn record(played: &ExecutedGraph, diagnostics: Vec<Diagnostic>) -> Value {
    let (graph, metrics) = (&played.graph, Metrics::default());
    let record = result_record(
        graph,
        diagnostics,
        metrics,
        Vec::new(),
        budget(),
        played.now,
    );
    json!(record)
}

/// The report of a completed graph that declares one, or the error of rendering it.
pub(super) fn report(played: &ExecutedGraph) -> Option<String> {
    let spec = played.graph.info.report.as_ref()?;
    if played.graph.status() != GraphStatus::Completed {
        return None;
    }
    Some(render_report(&played.graph, spec).unwrap_or_else(|missing| missing.to_string()))
}

/// The reason of the idle state.
pub(super) fn end_line(played: &ExecutedGraph) -> String {
    let status = played.graph.status().as_str();
    let next = match played.why {
        None => "the plan waits for a decision to execute it",
        Some(Why::Finished) => "the model would answer next",
        Some(Why::Decide) => "the model would decide about the failure next",
        Some(Why::UserNeeded) => {
            "the user would get a question; script it with a tool of type human"
        }
        Some(Why::PermissionNeeded) => {
            "the user would get an approval request; script it with approve = true"
        }
        Some(Why::Waiting) => "it waits for something outside",
        Some(Why::Canceled) => "it was stopped",
    };
    format!("{status}: {next}")
}
