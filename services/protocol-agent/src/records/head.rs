//! The head of a graph: what restores the scheduler, and beside it what the service has to remember.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::graph::{Graph, Millis, Transition};
use action_graph::ids::ActionId;
use action_graph::node::{NodeState, Wait};
use action_graph::record::{GraphOwner, RecordBody, RestoreError, StoredGraph, store};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::error::RecordsError;

/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 200 << 10;
/// Transitions in a head; more become a body.
const RECENT: usize = 32;
/// Observations that a head names.
const OBSERVATIONS: usize = 16;
/// Questions that a head names.
const ASKS: usize = 128;
/// Gateway runs that a head names.
const RUNS: usize = 32;

/// A question to the user, named before it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingQuestion {
    /// The `interaction_id`.
    pub interaction: String,
    /// Actions that it asks about.
    pub about: Vec<QuestionSubject>,
    /// When no answer is taken any more.
    pub expires_at: Millis,
    /// The run that asks. Set by [`DrivenGraphs`](crate::records::DrivenGraphs).
    #[serde(default)]
    pub run: String,
}

/// One action that a question is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionSubject {
    /// The action.
    pub id: ActionId,
    /// Its attempt.
    pub attempt: u32,
    /// Hash of the bound arguments, for approvals.
    pub hash: Option<String>,
}

/// An observation that was made for the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Observation {
    /// The last transition that it shows.
    pub(super) seq: u64,
    /// The generation that it shows.
    pub(super) generation: u32,
    /// The run that made it.
    pub(super) run: String,
    /// Name of its body.
    pub(super) body: String,
}

/// The head of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GraphHead {
    pub(super) stored: StoredGraph,
    /// When the graph was opened.
    pub(super) opened: Millis,
    /// Name of the body with the model's output.
    pub(super) source: String,
    /// Gateway runs that drove it, the last 32.
    pub(super) runs: Vec<String>,
    /// The last transitions.
    pub(super) recent: Vec<Transition>,
    /// Names of bodies with earlier ones.
    pub(super) segments: Vec<String>,
    /// Observations, the last 16.
    pub(super) observations: Vec<Observation>,
    /// Questions that are not answered.
    pub(super) asks: Vec<PendingQuestion>,
    /// Bytes of all bodies.
    pub(super) bytes: u64,
    /// Bodies that the gateway did not take from a cancelled run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) inline: BTreeMap<String, Value>,
}

/// Writes of one change of a graph.
pub(super) struct HeadChange {
    pub(super) head: GraphHead,
    pub(super) bodies: Vec<RecordBody>,
}

impl GraphHead {
    /// The head of a graph that is opened now.
    pub(super) fn first(
        graph: &Graph,
        conversation: &str,
        owner: GraphOwner,
        source: String,
        opened: Millis,
    ) -> Result<HeadChange, RecordsError> {
        let runs = vec![owner.run.clone()];
        let (stored, bodies) = store(graph, conversation, owner, None).map_err(too_large)?;
        let mut head = Self {
            stored,
            opened,
            source,
            runs,
            recent: Vec::new(),
            segments: Vec::new(),
            observations: Vec::new(),
            asks: Vec::new(),
            bytes: 0,
            inline: BTreeMap::new(),
        };
        let bodies = head.note(graph, bodies);
        Ok(HeadChange { head, bodies })
    }

    /// The head after a change of the graph, and the bodies that it names anew.
    pub(super) fn next(&self, graph: &Graph) -> Result<HeadChange, RecordsError> {
        let owner = self.stored.owner.clone();
        let conversation = &self.stored.conversation;
        let (stored, bodies) =
            store(graph, conversation, owner, Some(&self.stored)).map_err(too_large)?;
        let mut head = Self {
            stored,
            ..self.clone()
        };
        head.asks.retain(|ask| {
            let mut about = ask.about.iter();
            about.any(|asked| is_waiting(graph, &asked.id))
        });
        let bodies = head.note(graph, bodies);
        Ok(HeadChange { head, bodies })
    }

    /// Adds new transitions; a full list becomes a body.
    fn note(&mut self, graph: &Graph, mut bodies: Vec<RecordBody>) -> Vec<RecordBody> {
        let last = self.recent.last().map_or(0, |one| one.seq);
        let new = graph.transitions.iter().filter(|one| one.seq > last);
        self.recent.extend(new.cloned());
        if self.recent.len() > RECENT {
            // The last one stays: it says where the next ones begin.
            let full = self.recent.split_off(self.recent.len() - 1);
            let full = std::mem::replace(&mut self.recent, full);
            let first = full.first().map_or(0, |one| one.seq);
            let key = format!("transitions.{first:06}");
            let content = serde_json::to_value(full).unwrap_or_default();
            self.segments.push(key.clone());
            bodies.push(RecordBody { key, content });
        }
        bodies
    }

    /// Names an observation.
    pub(super) fn observe(&mut self, observation: Observation) {
        if self.observations.len() == OBSERVATIONS {
            self.observations.remove(0);
        }
        self.observations.push(observation);
    }

    /// Names a question; one of the same id is replaced.
    pub(super) fn ask(&mut self, ask: PendingQuestion) {
        self.asks.retain(|one| one.interaction != ask.interaction);
        if self.asks.len() == ASKS {
            self.asks.remove(0);
        }
        self.asks.push(ask);
    }

    /// Gives the graph to another run.
    pub(super) fn take_over(&mut self, run: &str, attempt: u32) {
        self.stored.take_over(run, attempt);
        if self.runs.last().is_none_or(|last| last != run) {
            if self.runs.len() == RUNS {
                self.runs.remove(0);
            }
            self.runs.push(run.to_owned());
        }
    }

    /// Names of all bodies that restore the graph.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let stored = &self.stored;
        let outputs = stored.outputs.values().map(|output| output.key.clone());
        let names = stored.inputs.values().cloned().chain(outputs);
        names.chain([stored.declaration.clone()]).collect()
    }
}

/// Whether an answer of the user still matters to this action.
pub(super) fn is_waiting(graph: &Graph, id: &ActionId) -> bool {
    let state = graph.node(id).map(|node| node.state);
    matches!(
        state,
        Some(NodeState::Waiting(Wait::User | Wait::Approval) | NodeState::Uncertain)
    )
}

fn too_large(error: RestoreError) -> RecordsError {
    match error {
        RestoreError::TooLarge(_) => RecordsError::Full {
            what: "the head of the graph",
            most: HEAD_BYTES,
        },
        other => other.into(),
    }
}
