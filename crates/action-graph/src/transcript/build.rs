//! Makes turns of graphs and refusals.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::accept::Repair;
use crate::action::{Condition, Test};
use crate::code::Code;
use crate::graph::{Graph, GraphStatus};
use crate::json::{canonical, pretty, size_of};
use crate::node::{BlockReason, Node, NodeState, Wait};
use crate::policy::{Return, Visibility};
use crate::result::deliver::Shown;
use crate::result::expand::Expanded;
use crate::result::observe::{ObservationBudget, observe};
use crate::schedule::Why;
use crate::transcript::{CallTurn, Notice, ProtocolTurn};
use crate::validate::action_hash;

/// Bytes by which bound values lengthen the arguments of a turn.
const VALUES: usize = 24 << 10;
/// Artifacts that one result lists.
const ARTIFACTS: usize = 20;

/// The turn of a graph at a decision point.
pub fn protocol_turn(graph: &Graph, why: Why, budget: ObservationBudget<'_>) -> ProtocolTurn {
    let shown = observe(graph, budget);
    let nodes = graph.declared().zip(shown);
    // One budget for all calls of the turn: the first ones get their values.
    let mut values = VALUES;
    let calls: Vec<_> = nodes
        .map(|(node, (_, shown))| CallTurn {
            arguments: arguments(node, &mut values),
            ..call_turn(graph, node, shown)
        })
        .collect();
    let printed = calls
        .iter()
        .map(|call| (budget.count)(&call.arguments) + (budget.count)(&call.does) + 20);
    ProtocolTurn {
        run_id: graph.id.0.clone(),
        purpose: purpose(graph),
        status: graph.aggregate(),
        declaration: Some(format!("runtime://runs/{}/declaration", graph.id)),
        continues: None,
        tokens: printed.sum(),
        calls,
        next: next_line(graph, why),
        is_exact: true,
    }
}

/// Title, else the first sentence of the note, else the ids.
fn purpose(graph: &Graph) -> String {
    if !graph.info.title.trim().is_empty() {
        return graph.info.title.clone();
    }
    let note = graph.info.note.trim();
    if !note.is_empty() {
        // The sentence ends with its mark, which may take several bytes.
        let end = note.find(['.', '!', '?', '\n', '。']).unwrap_or(note.len());
        let mark = note[end..].chars().next().map_or(0, char::len_utf8);
        return note[..end + mark].to_owned();
    }
    let ids = graph.declared().map(|node| node.action.id.as_str());
    ids.collect::<Vec<_>>().join(", ")
}

fn next_line(graph: &Graph, why: Why) -> Option<String> {
    let names = |state: fn(&NodeState) -> bool| {
        let nodes = graph.nodes.iter().filter(|node| state(&node.state));
        nodes
            .map(|node| node.action.id.0.clone())
            .collect::<Vec<_>>()
            .join(", ")
    };
    Some(match why {
        Why::Finished => return None,
        Why::Decide => {
            // Uncertain effects first: only a person can resolve them.
            let uncertain = names(|state| *state == NodeState::Uncertain);
            let failed = graph.declared().filter(|node| node.needs_decision());
            let failed: Vec<_> = failed.map(|node| node.action.id.as_str()).collect();
            match (uncertain.is_empty(), failed.is_empty()) {
                (false, _) => format!("a person must say whether this happened: {uncertain}"),
                (true, false) => format!(
                    "decide about {} (runtime.decide), or answer",
                    failed.join(", ")
                ),
                (true, true) => "decide, or answer".to_owned(),
            }
        }
        Why::UserNeeded => {
            format!(
                "waiting for an answer of the user: {}",
                names(|state| *state == NodeState::Waiting(Wait::User))
            )
        }
        Why::PermissionNeeded => {
            let waiting = names(|state| *state == NodeState::Waiting(Wait::Approval));
            format!("waiting for an approval of the user: {waiting}")
        }
        Why::Waiting => {
            format!(
                "waits: {}",
                names(|state| matches!(state, NodeState::Waiting(_)))
            )
        }
        Why::Canceled => {
            let code = graph.stop.map_or("canceled", |stop| stop.code().as_str());
            format!("the graph was stopped ({code}): say what is done and what is not")
        }
    })
}

fn call_turn(graph: &Graph, node: &Node, shown: Shown) -> CallTurn {
    let artifacts = node.output.iter().flat_map(|output| &output.artifacts);
    let artifacts = artifacts
        .take(ARTIFACTS)
        .map(|(_, reference)| reference.clone());
    let is_private = node.visibility() > Visibility::Model;
    let is_end = node.is_settled() || node.state == NodeState::Uncertain;
    let delivered = &shown.delivered;
    // Full results need no line about their form.
    let is_less = delivered.given != delivered.requested || delivered.tokens < delivered.of_tokens;
    let shown_line = (is_end && is_less).then(|| {
        let (given, requested) = (delivered.given.as_str(), delivered.requested.as_str());
        match &delivered.why {
            Some(why) if why == "private" => format!("{given} of {requested} ({why})"),
            _ => format!(
                "{given} of {requested}, {}/{} tokens",
                delivered.tokens, delivered.of_tokens
            ),
        }
    });
    // A result of an earlier attempt would mislead while a new one runs.
    let mut text = if is_end { shown.text } else { String::new() };
    if node.is_fan_out() && !is_private {
        let items = item_lines(graph, node);
        if !items.is_empty() {
            text = format!("{items}\n{text}");
            text.truncate(text.trim_end().len());
        }
    }
    // The model needs a reference where it cannot see the result itself.
    let is_reference =
        delivered.requested == Return::OnDemand && node.state == NodeState::Completed;
    let mut artifacts: Vec<_> = if is_private {
        Vec::new()
    } else {
        artifacts.collect()
    };
    if is_reference || (is_end && is_less && node.output.is_some() && !is_private) {
        artifacts.push(delivered.reference.clone());
    }
    CallTurn {
        id: node.action.id.0.clone(),
        kind: node.kind().label().to_owned(),
        target: node.target().to_owned(),
        does: match node.action.description.as_str() {
            // Without a title the carrier repeats the id, which is shown already.
            does if does == node.action.id.as_str() => String::new(),
            does => does.to_owned(),
        },
        after: node
            .action
            .depends_on
            .iter()
            .map(|id| id.0.clone())
            .collect(),
        when: node.action.when.as_ref().map(condition_line),
        arguments: String::new(),
        status: status_word(node).to_owned(),
        reason: reason(graph, node),
        artifacts,
        shown: shown_line,
        text,
        work: action_hash(&node.action),
    }
}

/// Bound arguments once they are known; private values stay references. `left` bytes of bound values fit into the turn,
/// later ones stay references, too.
fn arguments(node: &Node, left: &mut usize) -> String {
    let declared = &node.action.input;
    let bound = node.input.as_ref().and_then(Value::as_object);
    // A private value would be visible in the arguments.
    let bound = bound.filter(|_| node.taint == Visibility::Model);
    let added = bound.map(|bound| size_of(bound).saturating_sub(size_of(declared)));
    let fitting = added.and_then(|added| left.checked_sub(added));
    let shown = match (bound, fitting) {
        (Some(bound), Some(rest)) => {
            // Spent only by values that are shown.
            *left = rest;
            bound
        }
        _ => declared,
    };
    if shown.is_empty() {
        return String::new();
    }
    pretty(&Value::Object(shown.clone()))
}

/// The word of the projection, with two explanations.
pub(crate) fn status_word(node: &Node) -> &'static str {
    match node.state {
        NodeState::Skipped => "canceled (condition not met)",
        NodeState::Uncertain => "blocked (outcome unknown)",
        state => state.status().as_str(),
    }
}

fn reason(graph: &Graph, node: &Node) -> Option<(String, String)> {
    let line = match node.state {
        NodeState::Waiting(Wait::Approval) => "waits for an approval of the user".to_owned(),
        NodeState::Waiting(Wait::User) => {
            return Some(("user".to_owned(), "waits for the user".to_owned()));
        }
        NodeState::Waiting(Wait::Child) => {
            let run = node.child.clone().unwrap_or_default();
            return Some(("child".to_owned(), format!("waits for run {run}")));
        }
        NodeState::Waiting(Wait::Timer) => {
            return Some(("timer".to_owned(), "waits for a time".to_owned()));
        }
        NodeState::Waiting(Wait::External) => {
            return Some((
                "external".to_owned(),
                "waits for something outside".to_owned(),
            ));
        }
        NodeState::Waiting(Wait::Retry) | NodeState::Failed | NodeState::Uncertain => {
            let error = node.error.as_ref()?;
            // One line: the other ones are part of the result.
            let line = error.message.lines().next().unwrap_or_default();
            return Some((error.code.to_string(), line.chars().take(200).collect()));
        }
        NodeState::Blocked(BlockReason::Dependency) => {
            let needs = node.action.depends_on.iter();
            // Only dependencies that block; satisfied ones need no attention.
            let lost = needs.filter(|id| graph.node(id).is_some_and(|node| !node.satisfying));
            let lost: Vec<_> = lost.map(|id| id.0.as_str()).collect();
            format!("needs {}", lost.join(", "))
        }
        NodeState::Blocked(BlockReason::Input) => "a value of its input does not exist".to_owned(),
        NodeState::Skipped | NodeState::Canceled | NodeState::Completed => {
            node.why?.fix().to_owned()
        }
        NodeState::Pending | NodeState::Running | NodeState::FanOut => return None,
    };
    let code = node.why.map_or_else(String::new, |why| why.to_string());
    Some((code, line))
}

/// Items of a fan-out that did not succeed, and the number of those that are left.
fn item_lines(graph: &Graph, node: &Node) -> String {
    let all = graph.instances(&node.action.id).count();
    let lost = graph
        .instances(&node.action.id)
        .filter(|one| one.is_settled() && (one.state != NodeState::Completed || !one.satisfying));
    let lines: Vec<_> = lost
        .map(|one| {
            let error = one.error.as_ref();
            let code = error.map_or_else(
                || status_word(one).to_owned(),
                |error| error.code.to_string(),
            );
            let message =
                error.map_or("", |error| error.message.lines().next().unwrap_or_default());
            let message: String = message.chars().take(120).collect();
            format!("{}: {code}, {message}", one.action.id)
        })
        .collect();
    let mut text = match lines.len() {
        0 => String::new(),
        lost => format!("{} of {all} items done.\n{}", all - lost, lines.join("\n")),
    };
    // The model needs the offset to take the next slice.
    if let Some(each) = node.action.for_each.as_ref().filter(|_| node.left > 0) {
        let next = usize::try_from(each.from)
            .unwrap_or(usize::MAX)
            .saturating_add(all);
        let gap = if text.is_empty() { "" } else { "\n" };
        let left = node.left;
        let _ = write!(
            text,
            "{gap}{left} items of the list are left: continue with `from` {next}."
        );
    }
    text
}

fn condition_line(condition: &Condition) -> String {
    let (reference, test, negate) = match condition {
        Condition::Ending { action, is } => return format!("{action} is {}", is.as_str()),
        Condition::Value {
            reference,
            test,
            negate,
        } => (reference, test, *negate),
    };
    let (name, value) = match test {
        Test::Exists if negate => return format!("{reference} is absent"),
        Test::Exists => return format!("{reference} exists"),
        Test::Equals(value) => ("equals", value.clone()),
        Test::In(values) => ("in", values.clone().into()),
        Test::Less(number) => ("less", (*number).into()),
        Test::More(number) => ("more", (*number).into()),
    };
    // The form in which declarations have it.
    let mut line = json!({"ref": reference, name: value});
    if negate {
        line["negate"] = true.into();
    }
    canonical(&line)
}

/// The answer to a request for more of stored results.
pub fn expansion_turn(run_id: &str, answers: &[Expanded]) -> ProtocolTurn {
    let calls = answers.iter().enumerate().map(|(index, answer)| {
        let is_missing = answer.why == Some("missing");
        CallTurn {
            id: format!("expand_{}", index + 1),
            kind: "Runtime".to_owned(),
            target: "expand".to_owned(),
            arguments: pretty(&json!({"ref": answer.reference})),
            status: if is_missing { "failed" } else { "completed" }.to_owned(),
            reason: is_missing.then(|| {
                (
                    Code::RefExpired.to_string(),
                    "the result is gone".to_owned(),
                )
            }),
            shown: (answer.tokens < answer.of_tokens).then(|| {
                format!(
                    "excerpt of full, {}/{} tokens",
                    answer.tokens, answer.of_tokens
                )
            }),
            text: answer.text.clone(),
            ..CallTurn::default()
        }
    });
    let calls: Vec<_> = calls.collect();
    let is_empty = answers.iter().all(|answer| answer.why == Some("missing"));
    ProtocolTurn {
        run_id: run_id.to_owned(),
        purpose: "More of stored results".to_owned(),
        status: if is_empty {
            GraphStatus::Failed
        } else {
            GraphStatus::Completed
        },
        declaration: None,
        continues: None,
        calls,
        next: None,
        tokens: 0,
        is_exact: true,
    }
}

/// The notice of a refusal: nothing was executed, and one fix a line.
pub fn notice(repair: &Repair) -> Notice {
    // Warnings were accepted; a repair is about errors only.
    let lines = repair.diagnostics.iter().filter(|one| one.is_error());
    let mut lines: Vec<_> = lines
        .map(|one| {
            let position = match one.pointer.as_str() {
                "" => "/",
                position => position,
            };
            (one.code.to_string(), position.to_owned(), one.line())
        })
        .collect();
    for (name, schema) in &repair.schemas {
        lines.push(("schema".to_owned(), name.clone(), canonical(schema)));
    }
    Notice {
        sentence: "The last declaration was refused; nothing was executed.".to_owned(),
        lines,
    }
}
