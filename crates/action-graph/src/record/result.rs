//! `agent.protocol.result`: the machine-readable record of a graph; never the model's transcript.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::action::{Class, Effect};
use crate::declaration::{DeclarationForm, Intent};
use crate::delegate::{Assignment, assignment};
use crate::diagnostic::Diagnostic;
use crate::graph::{Graph, GraphStatus, Millis};
use crate::ids::ActionId;
use crate::node::{ActionError, Attempt, Node, NodeState, SummarySource, Wait};
use crate::policy::Visibility;
use crate::result::deliver::Delivered;
use crate::result::observe::{ObservationBudget, observe};
use crate::result::summary::summary_of;

/// Bytes of a summary in a record.
const SUMMARY: usize = 1 << 10;

/// Next step after a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NextStep {
    FinalAnswer,
    Decide,
    WaitUser,
    WaitApproval,
    WaitChild,
    None,
}

/// Measures that the service counted; those of the graph are added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metrics {
    pub model_calls: u64,
    pub tokens_in: u64,
    pub tokens_out: u64,
    pub tokens_shown: u64,
    pub bytes_stored: u64,
    pub actions: u64,
    pub attempts: u64,
    pub parallel_max: u64,
    pub wall_ms: u64,
    pub busy_ms: u64,
}

/// The record of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ResultRecord {
    /// `agent.protocol.result`.
    #[serde(rename = "type")]
    pub kind: String,
    /// `1`.
    pub version: String,
    pub run_id: String,
    /// Revisions so far.
    pub generation: u32,
    /// Completed, blocked or failed.
    pub status: GraphStatus,
    pub title: String,
    pub intent: Intent,
    /// The form in which it was declared.
    pub origin: DeclarationForm,
    /// Hash and place of the declaration.
    pub declaration: BTreeMap<String, String>,
    pub actions: Vec<ActionRecord>,
    pub next: NextStep,
    /// Warnings and repairs of the declaration.
    pub diagnostics: Vec<Diagnostic>,
    pub metrics: Metrics,
    /// Gateway runs that drove it.
    pub gateway_runs: Vec<String>,
    /// Creation time of the record.
    pub time: Millis,
}

/// The record of an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ActionRecord {
    pub id: ActionId,
    pub title: String,
    pub description: String,
    pub operation: String,
    /// Class, name and choice of its executor.
    pub executor: Value,
    /// One of seven words.
    pub status: GraphStatus,
    /// True if it opens edges.
    pub satisfying: bool,
    /// Delivery of its result to the model.
    pub delivered: Option<Delivered>,
    /// Its summary, at most 1 KiB; absent for private results.
    pub summary: Option<String>,
    pub summary_source: Option<SummarySource>,
    pub artifacts: Vec<String>,
    pub error: Option<ActionError>,
    pub attempts: Vec<Attempt>,
    pub effects: BTreeSet<Effect>,
    pub class: Class,
    pub depends_on: Vec<ActionId>,
    /// The child run, for agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub assignment: Option<Assignment>,
    /// Instances of a fan-out with their status.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instances: Vec<(ActionId, GraphStatus)>,
    /// Time in attempts, in milliseconds.
    pub time_ms: u64,
}

/// The record of a graph at a decision point.
pub fn result_record(
    graph: &Graph,
    diagnostics: Vec<Diagnostic>,
    mut metrics: Metrics,
    gateway_runs: Vec<String>,
    budget: ObservationBudget<'_>,
    now: Millis,
) -> ResultRecord {
    // The views of the model decide about tokens, so they are rendered once more.
    let shown = observe(graph, budget);
    let actions: Vec<_> = graph
        .declared()
        .zip(shown)
        .map(|(node, (_, shown))| action_record(graph, node, shown.delivered))
        .collect();
    let delivered = actions
        .iter()
        .filter_map(|action| action.delivered.as_ref());
    // The graph's own numbers overwrite the caller's.
    metrics.tokens_shown = delivered.map(|one| one.tokens as u64).sum();
    metrics.actions = graph.declared().count() as u64;
    metrics.attempts = graph.nodes.iter().map(|node| u64::from(node.attempt)).sum();
    metrics.busy_ms = graph.nodes.iter().map(busy).sum();
    let declaration = [
        ("sha256", graph.info.accepted_sha256.clone()),
        ("raw_sha256", graph.info.raw_sha256.clone()),
        ("ref", format!("runtime://runs/{}/declaration", graph.id)),
    ];
    ResultRecord {
        kind: "agent.protocol.result".to_owned(),
        version: "1".to_owned(),
        run_id: graph.id.0.clone(),
        generation: graph.generation,
        status: graph.aggregate(),
        title: graph.info.title.clone(),
        intent: graph.info.intent,
        origin: graph.info.origin,
        declaration: declaration
            .map(|(key, value)| (key.to_owned(), value))
            .into(),
        actions,
        next: next_of(graph),
        diagnostics,
        metrics,
        gateway_runs,
        time: now,
    }
}

fn busy(node: &Node) -> u64 {
    let ended = node
        .attempts
        .iter()
        .filter_map(|one| Some((one.started, one.ended?)));
    ended
        .map(|(started, ended)| ended.saturating_sub(started))
        .sum()
}

fn action_record(graph: &Graph, node: &Node, delivered: Delivered) -> ActionRecord {
    let resolved = node.action.resolved.as_ref();
    let is_open = node.visibility() < Visibility::RuntimeOnly;
    // Results that only the runtime may read stay out of the record.
    let output = node.output.as_ref().filter(|_| is_open);
    let summary = output.map(summary_of);
    let is_end = node.is_settled() || node.state == NodeState::Uncertain;
    let instances = graph.instances(&node.action.id);
    ActionRecord {
        id: node.action.id.clone(),
        title: node.action.title.clone(),
        description: node.action.description.clone(),
        operation: node.action.operation.clone(),
        executor: json!({
            "type": node.kind(),
            "target": node.target(),
            "chosen_by": resolved.map(|one| one.chosen_by),
        }),
        status: node.state.status(),
        satisfying: node.satisfying,
        // Before its end there is no delivery to record.
        delivered: is_end.then_some(delivered),
        summary_source: summary.as_ref().map(|(_, source)| *source),
        summary: summary
            .map(|(text, _)| crate::result::tokens::head_bytes(&text, SUMMARY).to_owned()),
        artifacts: output
            .iter()
            .flat_map(|output| &output.artifacts)
            .map(|(_, one)| one.clone())
            .collect(),
        error: node.error.clone(),
        attempts: node.attempts.clone(),
        effects: resolved.map(|one| one.effects.clone()).unwrap_or_default(),
        class: node.class(),
        depends_on: node.action.depends_on.clone(),
        assignment: assignment(graph, &node.action.id),
        instances: instances
            .map(|one| (one.action.id.clone(), one.state.status()))
            .collect(),
        time_ms: busy(node),
    }
}

fn next_of(graph: &Graph) -> NextStep {
    // Waits that the user can end precede a child run.
    let is = |state: NodeState| graph.nodes.iter().any(|node| node.state == state);
    // A stopped graph takes no decision; the model can only answer.
    if graph.stop.is_some() {
        return NextStep::FinalAnswer;
    }
    if is(NodeState::Waiting(Wait::User)) {
        return NextStep::WaitUser;
    }
    if is(NodeState::Waiting(Wait::Approval)) {
        return NextStep::WaitApproval;
    }
    if is(NodeState::Waiting(Wait::Child)) {
        return NextStep::WaitChild;
    }
    match graph.aggregate() {
        GraphStatus::Completed => NextStep::FinalAnswer,
        _ if graph
            .nodes
            .iter()
            .any(|node| node.state.status() == GraphStatus::Running) =>
        {
            NextStep::None
        }
        _ => NextStep::Decide,
    }
}
