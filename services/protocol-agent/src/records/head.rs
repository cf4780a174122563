//! Head of a graph: the scheduler's state, and further facts of the service.

use std::collections::{BTreeMap, BTreeSet};

use action_graph::graph::{Graph, Millis, Transition};
use action_graph::ids::ActionId;
use action_graph::node::{NodeState, Wait};
use action_graph::record::{GraphOwner, RecordBody, RestoreError, StoredGraph, store};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::records::error::RecordsError;

/// Maximum bytes of a head.
pub(super) const HEAD_BYTES: usize = 200 << 10;
/// Maximum transitions in a head. A full list becomes a body.
const RECENT: usize = 32;
/// Maximum observations named in a head.
const OBSERVATIONS: usize = 16;
/// Maximum questions named in a head.
const ASKS: usize = 128;
/// Maximum runs named in a head.
const RUNS: usize = 32;

/// Question to the user, stored before it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PendingQuestion {
    /// The `interaction_id`.
    pub interaction: String,
    /// Actions of the question.
    pub about: Vec<QuestionSubject>,
    /// Expiry, in milliseconds since the epoch.
    pub expires_at: Millis,
    /// Run that sends the question. Set by [`DrivenGraphs`](crate::records::DrivenGraphs).
    #[serde(default)]
    pub run: String,
}

/// Action of a question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuestionSubject {
    /// Action that waits for the answer.
    pub id: ActionId,
    /// Attempt of the action, counted from 1.
    pub attempt: u32,
    /// Hash of the bound arguments, for approvals.
    pub hash: Option<String>,
}

/// Stored observation for the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Observation {
    /// Last transition in the observation.
    pub(super) seq: u64,
    pub(super) generation: u32,
    /// Run that made the observation.
    pub(super) run: String,
    /// Name of the body with its turn.
    pub(super) body: String,
}

/// Head of a graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct GraphHead {
    pub(super) stored: StoredGraph,
    /// Opening time of the graph.
    pub(super) opened: Millis,
    /// Name of the body with the model's output.
    pub(super) source: String,
    /// Last [`RUNS`] runs that drove the graph.
    pub(super) runs: Vec<String>,
    /// Last transitions, at most [`RECENT`].
    pub(super) recent: Vec<Transition>,
    /// Names of bodies with earlier transitions.
    pub(super) segments: Vec<String>,
    /// Last [`OBSERVATIONS`] observations.
    pub(super) observations: Vec<Observation>,
    /// Questions of waiting actions, oldest first.
    pub(super) asks: Vec<PendingQuestion>,
    /// Total bytes of all bodies.
    pub(super) bytes: u64,
    /// Bodies that the gateway rejected from a cancelled run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) inline: BTreeMap<String, Value>,
}

/// Writes for one change of a graph.
pub(super) struct HeadChange {
    pub(super) head: GraphHead,
    pub(super) bodies: Vec<RecordBody>,
}

impl GraphHead {
    /// Head of a new graph.
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

    /// Head after a change of the graph, with the new bodies that it names.
    pub(super) fn next(&self, graph: &Graph) -> Result<HeadChange, RecordsError> {
        let owner = self.stored.owner.clone();
        let conversation = &self.stored.conversation;
        let (stored, bodies) =
            store(graph, conversation, owner, Some(&self.stored)).map_err(too_large)?;
        let mut head = Self {
            stored,
            ..self.clone()
        };
        // A question stays as long as one of its actions waits.
        head.asks.retain(|ask| {
            let mut about = ask.about.iter();
            about.any(|subject| is_waiting(graph, &subject.id))
        });
        let bodies = head.note(graph, bodies);
        Ok(HeadChange { head, bodies })
    }

    /// Adds new transitions. A full list becomes a body.
    fn note(&mut self, graph: &Graph, mut bodies: Vec<RecordBody>) -> Vec<RecordBody> {
        let last = self.recent.last().map_or(0, |one| one.seq);
        let new = graph.transitions.iter().filter(|one| one.seq > last);
        self.recent.extend(new.cloned());
        if self.recent.len() > RECENT {
            // The last transition stays: its number marks the beginning of the next ones.
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

    /// Adds an observation, and evicts the oldest beyond [`OBSERVATIONS`].
    pub(super) fn observe(&mut self, observation: Observation) {
        if self.observations.len() == OBSERVATIONS {
            self.observations.remove(0);
        }
        self.observations.push(observation);
    }

    /// Adds a question, or replaces the one with the same id.
    pub(super) fn ask(&mut self, ask: PendingQuestion) {
        self.asks.retain(|one| one.interaction != ask.interaction);
        if self.asks.len() == ASKS {
            self.asks.remove(0);
        }
        self.asks.push(ask);
    }

    /// Sets another run as the owner of the graph.
    pub(super) fn take_over(&mut self, run: &str, attempt: u32) {
        self.stored.take_over(run, attempt);
        if self.runs.last().is_none_or(|last| last != run) {
            if self.runs.len() == RUNS {
                self.runs.remove(0);
            }
            self.runs.push(run.to_owned());
        }
    }

    /// Names of all bodies needed to restore the graph.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let stored = &self.stored;
        let outputs = stored.outputs.values().map(|output| output.key.clone());
        let names = stored.inputs.values().cloned().chain(outputs);
        names.chain([stored.declaration.clone()]).collect()
    }
}

/// True if the action waits for an answer of the user.
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
            bound: HEAD_BYTES,
        },
        other => other.into(),
    }
}
