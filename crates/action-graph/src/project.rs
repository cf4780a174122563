//! The projection: the state of a graph for users, without protocol words.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::graph::{Graph, GraphStatus};
use crate::node::{Node, NodeState, Wait};
use crate::policy::Visibility;
use crate::result::summary::summary_of;
use crate::result::tokens::head_bytes;

/// Characters of a title taken from the request.
const TITLE: usize = 60;
/// Bytes of a result's text.
const SUMMARY: usize = 400;

/// A graph for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Projection {
    pub graph_id: String,
    pub title: String,
    /// The note for the user.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// One of seven words.
    pub status: GraphStatus,
    pub progress: GraphProgress,
    /// Pending wait: `user`, `approval`, `child`, `external` or `timer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<Wait>,
    pub actions: Vec<ProjectedAction>,
    /// Result for the user, once it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_summary: Option<String>,
    /// Reference to the raw declaration.
    pub details_ref: String,
    /// Revisions so far.
    pub generation: u32,
    /// Number of the last transition.
    pub seq: u64,
}

/// Actions that are done, of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphProgress {
    /// Settled actions.
    pub done: usize,
    /// All actions.
    pub total: usize,
    /// Titles of running actions.
    pub phase: String,
}

/// An action for users.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProjectedAction {
    pub id: String,
    pub title: String,
    pub description: String,
    /// Ids of the actions that must end first; present even if empty, unlike in results of earlier versions.
    #[serde(default)]
    pub depends_on: Vec<String>,
    /// One of seven words.
    pub status: GraphStatus,
    /// Reason of this state, in words for users.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Items of a fan-out: done, of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<(usize, usize)>,
    /// Result for the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result_summary: Option<String>,
    /// Reference to the complete result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details_ref: Option<String>,
    /// Class of its executor.
    pub kind_label: String,
}

/// Changes of a projection: the complete head, and actions that differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    pub graph_id: String,
    pub status: GraphStatus,
    pub progress: GraphProgress,
    /// Pending wait.
    pub waiting_for: Option<Wait>,
    /// Actions that are new or differ.
    pub actions: Vec<ProjectedAction>,
    /// Actions that a revision removed.
    pub removed: Vec<String>,
    /// Result for the user.
    pub result_summary: Option<String>,
    /// Revisions so far.
    pub generation: u32,
    /// Number of the last transition.
    pub seq: u64,
}

/// The projection of a graph.
pub fn project(graph: &Graph) -> Projection {
    let actions: Vec<_> = graph
        .declared()
        .map(|node| project_action(graph, node))
        .collect();
    let running = graph
        .declared()
        .filter(|node| node.state.status() == GraphStatus::Running);
    // A few titles: the phase is one line of a user interface.
    let phase: Vec<_> = running
        .take(4)
        .map(|node| node.action.title.as_str())
        .collect();
    // Retries are short and need nothing from the user.
    let waits = graph.nodes.iter().filter_map(|node| match node.state {
        NodeState::Waiting(wait) if wait != Wait::Retry => Some(wait),
        _ => None,
    });
    // Declarations of the carrier have no title; the request describes them for the user.
    let title = match graph.info.title.trim() {
        "" => graph.info.goal.chars().take(TITLE).collect(),
        title => title.to_owned(),
    };
    let status = graph.status();
    let is_over = matches!(
        status,
        GraphStatus::Completed | GraphStatus::Failed | GraphStatus::Canceled
    );
    Projection {
        graph_id: graph.id.0.clone(),
        title,
        note: graph.info.note.clone(),
        status,
        progress: GraphProgress {
            done: graph.declared().filter(|node| node.is_settled()).count(),
            total: actions.len(),
            phase: phase.join(", "),
        },
        // A wait that the user can end precedes the others.
        waiting_for: waits.min_by_key(|wait| match wait {
            Wait::User => 0,
            Wait::Approval => 1,
            _ => 2,
        }),
        result_summary: is_over.then(|| outcome(graph)),
        actions,
        details_ref: format!("runtime://runs/{}/declaration", graph.id),
        generation: graph.generation,
        seq: graph.seq,
    }
}

fn outcome(graph: &Graph) -> String {
    let count = |state: NodeState| graph.declared().filter(|node| node.state == state).count();
    let all = graph.declared().count();
    let mut text = format!("{} of {all} steps done", count(NodeState::Completed));
    for (state, word) in [
        (NodeState::Failed, "failed"),
        (NodeState::Canceled, "canceled"),
    ] {
        let number = count(state);
        if number > 0 {
            let _ = write!(text, ", {number} {word}");
        }
    }
    text
}

fn project_action(graph: &Graph, node: &Node) -> ProjectedAction {
    let instances: Vec<_> = graph.instances(&node.action.id).collect();
    let done = instances.iter().filter(|one| one.is_settled()).count();
    // Users may see what the model may not, but nothing that only the runtime reads.
    let may_see = node.visibility() < Visibility::RuntimeOnly;
    let output = node
        .output
        .as_ref()
        .filter(|_| may_see && node.state == NodeState::Completed);
    let details = output.map(|_| crate::result::deliver::reference_of(graph, node));
    let settles = node.action.resolved.iter().flat_map(|one| &one.settles);
    let depends_on = node.action.depends_on.iter().chain(settles);
    ProjectedAction {
        id: node.action.id.0.clone(),
        title: node.action.title.clone(),
        description: node.action.description.clone(),
        depends_on: depends_on.map(|id| id.0.clone()).collect(),
        status: node.state.status(),
        reason: reason(node),
        progress: (!instances.is_empty()).then_some((done, instances.len())),
        result_summary: output.map(|output| {
            let (text, _) = summary_of(output);
            // Users read no JSON; the reference leads to the details.
            let is_json = text.trim_start().starts_with(['{', '[']);
            if is_json {
                "done".to_owned()
            } else {
                head_bytes(text.trim(), SUMMARY).to_owned()
            }
        }),
        details_ref: details,
        kind_label: node.kind().label().to_owned(),
    }
}

/// The reason of a state, in words for users.
fn reason(node: &Node) -> Option<String> {
    let text = match node.state {
        NodeState::Waiting(Wait::Approval) => "waits for your approval",
        NodeState::Waiting(Wait::User) => "waits for your answer",
        NodeState::Waiting(Wait::Retry) => "tries again shortly",
        NodeState::Waiting(_) => "waiting",
        NodeState::Uncertain => "it is not known whether this happened",
        NodeState::Skipped => "not needed",
        NodeState::Blocked(_) => "blocked",
        NodeState::Canceled => "canceled",
        NodeState::Failed => match node.why {
            Some(Code::ApprovalDenied) => "you refused it",
            Some(Code::InteractionExpired) => "no answer in time",
            Some(Code::ApprovalUnavailable) => {
                "it needs an approval, which cannot be requested here"
            }
            Some(Code::Timeout) => "it took too long",
            _ => "it failed",
        },
        _ => return None,
    };
    Some(text.to_owned())
}

/// Difference of two projections; `None` when they are equal.
pub fn patch(before: &Projection, after: &Projection) -> Option<Patch> {
    if before == after {
        return None;
    }
    // Complete actions are replaced: clients need no merge within an action.
    let same = |one: &&ProjectedAction| before.actions.contains(one);
    let actions = after
        .actions
        .iter()
        .filter(|one| !same(one))
        .cloned()
        .collect();
    let remains = |one: &ProjectedAction| after.actions.iter().any(|other| other.id == one.id);
    let removed = before.actions.iter().filter(|one| !remains(one));
    Some(Patch {
        graph_id: after.graph_id.clone(),
        status: after.status,
        progress: after.progress.clone(),
        waiting_for: after.waiting_for,
        actions,
        removed: removed.map(|one| one.id.clone()).collect(),
        result_summary: after.result_summary.clone(),
        generation: after.generation,
        seq: after.seq,
    })
}

/// A projection after a patch, for clients.
pub fn apply(mut projection: Projection, patch: &Patch) -> Projection {
    projection.status = patch.status;
    projection.progress.clone_from(&patch.progress);
    // Assigned even if `None`: the patch has the complete head.
    projection.waiting_for = patch.waiting_for;
    projection.result_summary.clone_from(&patch.result_summary);
    projection.generation = patch.generation;
    projection.seq = patch.seq;
    projection
        .actions
        .retain(|one| !patch.removed.contains(&one.id));
    for action in &patch.actions {
        match projection
            // Changed actions keep their position; new ones follow.
            .actions
            .iter_mut()
            .find(|one| one.id == action.id)
        {
            Some(one) => one.clone_from(action),
            None => projection.actions.push(action.clone()),
        }
    }
    projection
}
