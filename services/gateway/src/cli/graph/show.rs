//! Output of `runnel graph`.

use action_graph::accept::Repair;
use action_graph::code::Level;
use action_graph::declaration::Declaration;
use action_graph::diagnostic::Diagnostic;
use action_graph::graph::{Status, Transition};
use action_graph::node::{State, Wait};
use action_graph::record::{Metrics, result_record};
use action_graph::report::render_report;
use action_graph::result::observe::Budget;
use action_graph::result::tokens::estimate;
use action_graph::schedule::Why;
use action_graph::transcript::{Turn, notice, protocol_turn, render};
use serde_json::{Value, json};

use crate::cli::graph::execute::ExecutedGraph;

/// Context window of the assumed model, in tokens.
const WINDOW: usize = 128_000;

/// `error bad_id at /calls/0/id: message. Fix: hint`.
pub(super) fn diagnostic_line(diagnostic: &Diagnostic) -> String {
    let level = match diagnostic.level {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Info => "info",
    };
    let place = match diagnostic.pointer.as_str() {
        "" => "the output",
        pointer => pointer,
    };
    format!(
        "{level} {} at {place}: {}",
        diagnostic.code.as_str(),
        diagnostic.line()
    )
}

pub(super) fn lint_summary(is_accepted: bool, diagnostics: &[Diagnostic]) -> String {
    let count = |level| diagnostics.iter().filter(|one| one.level == level).count();
    let verdict = if is_accepted { "accepted" } else { "refused" };
    format!(
        "{verdict} (errors: {}, warnings: {})",
        count(Level::Error),
        count(Level::Warning)
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

fn mark(state: State) -> char {
    match state {
        State::Completed => '✓',
        State::Failed | State::Blocked(_) => '✗',
        State::Running | State::FanOut => '▸',
        State::Waiting(Wait::User | Wait::Approval) | State::Uncertain => '?',
        State::Skipped | State::Canceled => '-',
        State::Pending | State::Waiting(_) => '…',
    }
}

/// Label of a state, more precise than the seven statuses of the projection.
fn word(state: State) -> String {
    match state {
        State::Uncertain => "uncertain".to_owned(),
        State::Skipped => "skipped".to_owned(),
        State::Waiting(wait) => format!("waiting for {}", name(&json!(wait))),
        State::Blocked(block) => format!("blocked by {}", name(&json!(block))),
        _ => state.status().as_str().to_owned(),
    }
}

fn name(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn budget() -> Budget<'static> {
    Budget {
        window: WINDOW,
        count: &estimate,
    }
}

/// The turn of a refused output.
pub(super) fn notice_turn(repair: &Repair) -> String {
    render(&[Turn::Notice(notice(repair))])
}

/// The turn of an output without a graph.
pub(super) fn message_turn(declaration: &Declaration) -> String {
    let text = declaration.message.clone();
    render(&[Turn::Answer { text }])
}

/// The turns of a graph: the user's request if the script has one, then the declaration with its observations.
pub(super) fn graph_turn(played: &ExecutedGraph, goal: &str) -> String {
    let user = (!goal.is_empty()).then(|| Turn::User {
        text: goal.to_owned(),
        attachments: Vec::new(),
    });
    let why = played.why.unwrap_or(Why::Waiting);
    let turn = Turn::Protocol(protocol_turn(&played.graph, why, budget()));
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
    if played.graph.status() != Status::Completed {
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
        Some(Why::UserNeeded) => "the user would be asked; script it with a tool of type human",
        Some(Why::PermissionNeeded) => {
            "the user would be asked for an approval; script it with approve = true"
        }
        Some(Why::Waiting) => "it waits for something outside",
        Some(Why::Canceled) => "it was stopped",
    };
    format!("{status}: {next}")
}
