//! Delegation: node requests, assignments and handoffs.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::AUTHORITY;
use crate::graph::{Graph, Millis};
use crate::ids::{ActionId, GraphId};
use crate::json::{canonical, pretty};
use crate::node::{Node, NodeState};
use crate::policy::{ResultPolicy, Visibility};
use crate::reference::{Reference, ResultPart};
use crate::result::deliver::{policy_of, reference_of};
use crate::result::summary::summary_of;
use crate::result::tokens::{clip_head, estimate};
use crate::transcript::one_line;
use secrets::digest::sha256_hex;

/// Tokens of one reference in a prompt; longer ones become a summary and the reference.
const PER_REFERENCE: usize = 4_000;

/// An action bound to an agent, stored before the child run starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assignment {
    /// Its id: graph, action and attempt.
    pub id: String,
    pub graph: GraphId,
    pub action: ActionId,
    pub agent: String,
    /// The child run, once it is known.
    pub child_run: Option<String>,
    /// Hash of the rights that the action names; `None`: it names none.
    pub authority: Option<String>,
    /// Reference to the node request.
    pub context_bundle_ref: String,
    /// Requested form of the result.
    pub expected: ResultPolicy,
    /// Acceptance criteria.
    pub criteria: Vec<String>,
    /// Time limit of the child run.
    pub deadline: Option<Millis>,
    /// Tokens that it may use.
    pub budget: Option<u64>,
    /// Artifacts that it made.
    pub artifacts: Vec<String>,
    /// Traces of the child run.
    pub trace: Vec<String>,
    pub status: String,
    pub result: Option<String>,
}

/// A structured transfer; never itself a result, so that it opens no edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handoff {
    pub id: String,
    /// The assignment that hands over.
    pub from: String,
    /// The receiving action, agent or user.
    pub to: String,
    pub result_summary: String,
    /// Claims with references.
    pub evidence: Vec<Evidence>,
    pub artifacts: Vec<String>,
    /// Failed actions of the graph, with their messages.
    pub risks: Vec<String>,
    /// Unmet acceptance criteria.
    pub unresolved: Vec<String>,
    /// Goal of the receiving action.
    pub next_goal: String,
    /// Bounds of the next work.
    pub constraints: Vec<String>,
    /// Actions that it rests on.
    pub dependencies: Vec<ActionId>,
    /// References to raw results.
    pub raw_refs: Vec<String>,
    /// Words of the child without a reference.
    pub notes: Vec<String>,
}

/// A claim with its references.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    pub text: String,
    pub refs: Vec<String>,
}

/// The request that an agent gets: expanded context, handoffs of the agents that it depends on, task and input. `None`
/// for an unknown action or a reference without a value; unresolved references never reach an executor.
pub fn node_request(graph: &Graph, id: &ActionId) -> Option<String> {
    let node = graph.node(id)?;
    let mut contexts = Vec::new();
    // One missing value fails the request: an agent must not work from half of its context.
    for reference in &node.action.context_refs {
        contexts.push(expanded(graph, node, reference)?);
    }
    let task = task_of(graph, node)?;
    let mut text = format!(
        "<node-request run_id=\"{}\" action_id=\"{}\">\n",
        // Escaped: a value must not close the tags around it.
        escape(&graph.id.0),
        escape(&id.0)
    );
    if !contexts.is_empty() {
        let _ = write!(
            text,
            "<context>\n{}\n</context>\n",
            escape(&contexts.join("\n\n"))
        );
    }
    for handed in handoffs(graph, node) {
        let handed = serde_json::to_value(&handed).ok()?;
        let _ = write!(
            text,
            "<handoff>\n{}\n</handoff>\n",
            escape(&pretty(&handed))
        );
    }
    let _ = write!(text, "<task>\n{}\n</task>\n", escape(&task));
    // An empty input would only cost tokens.
    if let Some(input) = node.input.as_ref().filter(|input| has_values(input)) {
        let _ = write!(text, "<input>\n{}\n</input>\n", escape(&pretty(input)));
    }
    text.push_str("</node-request>\n");
    Some(text)
}

/// The task of an agent: its prompt, else its description. `None` for a reference without a value.
fn task_of(graph: &Graph, node: &Node) -> Option<String> {
    // A reference takes precedence: it is the longer, deliberate form of the task.
    if let Some(reference) = &node.action.prompt_ref {
        return expanded(graph, node, reference);
    }
    let input = node.input.as_ref();
    let prompt = input.and_then(|input| input.get("prompt")?.as_str());
    Some(prompt.map_or_else(|| node.action.description.clone(), str::to_owned))
}

/// Title and task of an agent on one line, at most `most` characters: for lists of runs.
pub fn task_summary(graph: &Graph, id: &ActionId, max_chars: usize) -> Option<String> {
    let node = graph.node(id)?;
    let (title, task) = (
        one_line(&node.action.title),
        one_line(&task_of(graph, node)?),
    );
    let text = match (title.as_str(), task.as_str()) {
        (title, "") => title.to_owned(),
        ("", task) => task.to_owned(),
        (title, task) if title == task => title.to_owned(),
        (title, task) => format!("{title}: {task}"),
    };
    // Characters, not bytes: the list is for people.
    if text.chars().count() <= max_chars {
        return Some(text).filter(|text| !text.is_empty());
    }
    let cut: String = text.chars().take(max_chars.saturating_sub(1)).collect();
    Some(format!("{cut}…"))
}

/// Handoffs of the assignments that an action depends on, but for those whose results no model may read.
fn handoffs(graph: &Graph, node: &Node) -> Vec<Handoff> {
    let is_open = |from: &&ActionId| {
        let source = graph.node(from);
        source.is_some_and(|source| source.visibility() == Visibility::Model)
    };
    let from = node.action.depends_on.iter().filter(is_open);
    from.filter_map(|from| handoff(graph, from, &node.action.id))
        .collect()
}

fn has_values(input: &Value) -> bool {
    input.as_object().is_some_and(|input| !input.is_empty())
}

fn expanded(graph: &Graph, node: &Node, reference: &Reference) -> Option<String> {
    // The reference is shown, so that the agent knows of a value that it may not read.
    if graph.readers_of(reference, Some(node)) == Visibility::RuntimeOnly {
        return Some(format!("(private: {reference})"));
    }
    let text = match graph.value_of(reference, Some(node))? {
        Value::String(text) => text,
        other => pretty(&other),
    };
    // Most values are short; a summary would lose detail without need.
    if estimate(&text) <= PER_REFERENCE {
        return Some(text);
    }
    let summary = match reference {
        Reference::Action {
            id,
            part: ResultPart::Output,
            ..
        } => graph
            .node(id)
            .and_then(|node| node.output.as_ref())
            .map(|output| summary_of(output).0),
        _ => None,
    };
    // Other kinds of values have no summary of their own.
    let summary = summary.unwrap_or_else(|| clip_head(&text, PER_REFERENCE, &estimate).to_owned());
    Some(format!("{summary}\n(shortened: {reference})"))
}

fn escape(text: &str) -> String {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    text.replace('"', "&quot;")
}

/// The assignment of a running agent action; `None` for other actions.
pub fn assignment(graph: &Graph, id: &ActionId) -> Option<Assignment> {
    let node = graph
        .node(id)
        .filter(|node| node.kind() == crate::action::ExecutorKind::Agent)?;
    let criteria = node
        .action
        .policies
        .extra
        .get("criteria")
        .and_then(Value::as_array);
    let criteria = criteria
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned);
    let artifacts = node.output.iter().flat_map(|output| &output.artifacts);
    let authority = node.input.as_ref().and_then(|input| input.get(AUTHORITY));
    Some(Assignment {
        id: format!("{}.{id}.{}", graph.id, node.attempt),
        graph: graph.id.clone(),
        action: id.clone(),
        agent: node.target().to_owned(),
        child_run: node.child.clone(),
        authority: authority.map(|named| sha256_hex(canonical(named))),
        context_bundle_ref: format!("runtime://runs/{}/actions/{id}/request", graph.id),
        expected: policy_of(graph, node),
        criteria: criteria.collect(),
        deadline: None,
        budget: None,
        artifacts: artifacts.map(|(_, reference)| reference.clone()).collect(),
        trace: node.child.iter().map(|run| format!("run:{run}")).collect(),
        status: node.state.status().as_str().to_owned(),
        result: node.output.as_ref().map(|_| reference_of(graph, node)),
    })
}

/// The handoff from an ended assignment to an action that depends on it, built mechanically.
pub fn handoff(graph: &Graph, from: &ActionId, to: &ActionId) -> Option<Handoff> {
    let assignment = assignment(graph, from)?;
    let (source, next) = (graph.node(from)?, graph.node(to)?);
    let (summary, notes) = match &source.output {
        Some(output) => (summary_of(output).0, vec![]),
        None => (
            String::new(),
            vec!["the assignment has no result".to_owned()],
        ),
    };
    let failed = graph
        .declared()
        .filter(|node| node.state == NodeState::Failed);
    let risks = failed.map(|node| {
        let message = node
            .error
            .as_ref()
            .map_or("", |error| error.message.as_str());
        format!("{}: {message}", node.action.id)
    });
    // Criteria are not checked mechanically: all of them stay open after a failure.
    let unresolved = if source.satisfying {
        Vec::new()
    } else {
        assignment.criteria.clone()
    };
    let reference = reference_of(graph, source);
    Some(Handoff {
        id: format!("{}>{to}", assignment.id),
        from: assignment.id,
        to: to.0.clone(),
        // A handoff without a result has no evidence.
        evidence: source
            .output
            .iter()
            .map(|_| Evidence {
                text: "full result".to_owned(),
                refs: vec![reference.clone()],
            })
            .collect(),
        result_summary: summary,
        artifacts: assignment.artifacts,
        risks: risks.collect(),
        unresolved,
        next_goal: next.action.description.clone(),
        constraints: Vec::new(),
        dependencies: next.action.depends_on.clone(),
        raw_refs: source.output.iter().map(|_| reference.clone()).collect(),
        notes,
    })
}
