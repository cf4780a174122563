//! Head of a graph: the scheduler's state, and further facts of the service.

use action_graph::graph::{Graph, Millis, Transition};
use action_graph::ids::ActionId;
use action_graph::node::{NodeState, Wait};
use action_graph::record::{RecordBody, StoredGraph, store};
use serde::{Deserialize, Serialize};

/// Name of the body with the head.
pub(super) const HEAD: &str = "head";
/// Maximum observations named in a head.
const OBSERVATIONS: usize = 16;
/// Maximum questions named in a head.
const ASKS: usize = 128;

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

impl PendingQuestion {
    /// Reference to the question for host calls; `None` for a question of an older agent, which did not store its run.
    pub fn reference(&self) -> Option<String> {
        (!self.run.is_empty()).then(|| format!("{}/{}", self.run, self.interaction))
    }
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
    /// All transitions.
    pub(super) transitions: Vec<Transition>,
    /// Last [`OBSERVATIONS`] observations.
    pub(super) observations: Vec<Observation>,
    /// Questions of waiting actions, oldest first.
    pub(super) asks: Vec<PendingQuestion>,
}

/// Writes for one change of a graph.
pub(super) struct HeadChange {
    pub(super) head: GraphHead,
    pub(super) bodies: Vec<RecordBody>,
}

impl GraphHead {
    /// Head after a change of the graph, with the new bodies that it names. `before`: its earlier head.
    pub(super) fn of(graph: &Graph, before: Option<&Self>) -> HeadChange {
        let (stored, bodies) = store(graph, before.map(|before| &before.stored));
        let mut head = Self {
            stored,
            transitions: before.map_or_else(Vec::new, |before| before.transitions.clone()),
            observations: before.map_or_else(Vec::new, |before| before.observations.clone()),
            asks: before.map_or_else(Vec::new, |before| before.asks.clone()),
        };
        // A question stays as long as one of its actions waits.
        head.asks.retain(|ask| {
            let mut about = ask.about.iter();
            about.any(|subject| is_waiting(graph, &subject.id))
        });
        let last = head.transitions.last().map_or(0, |one| one.seq);
        let new = graph.transitions.iter().filter(|one| one.seq > last);
        head.transitions.extend(new.cloned());
        HeadChange { head, bodies }
    }

    /// Body with this head.
    pub(super) fn body(&self) -> RecordBody {
        RecordBody {
            key: HEAD.to_owned(),
            content: serde_json::to_value(self).unwrap_or_default(),
        }
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
}

/// True if the action waits for an answer of the user.
pub(super) fn is_waiting(graph: &Graph, id: &ActionId) -> bool {
    let state = graph.node(id).map(|node| node.state);
    matches!(
        state,
        Some(NodeState::Waiting(Wait::User | Wait::Approval) | NodeState::Uncertain)
    )
}
