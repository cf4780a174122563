//! Graphs that a run holds in memory.

use std::collections::BTreeSet;

use action_graph::diagnostic::Diagnostic;
use action_graph::graph::Graph;
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::{Node, NodeState, Wait};
use action_graph::project::Projection;
use action_graph::rules::KnownGraph;
use action_graph::schedule::Why;
use tokio::time::Instant;

/// A graph of this run, with what the service remembers of it.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts of a graph"
)]
pub(crate) struct LiveGraph {
    pub(crate) graph: Graph,
    /// Why nothing of it moves; absent while something does, and for plans.
    pub(crate) why: Option<Why>,
    /// The model's output that declared it in this run.
    pub(crate) raw: Option<String>,
    /// Warnings of its declaration.
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// Generation and transition of the last observation.
    pub(crate) seen: Option<(u32, u64)>,
    /// The projection that the user has.
    pub(crate) shown: Option<Projection>,
    /// When it was sent.
    pub(crate) shown_at: Option<Instant>,
    /// Whether it has changed since.
    pub(crate) is_dirty: bool,
    /// Whether the user has the whole of its end.
    pub(crate) is_reported: bool,
    /// Effects of unknown outcome that a person was asked about.
    pub(crate) asked: BTreeSet<(ActionId, u32)>,
    /// Whether a bound of the records was reached before.
    pub(crate) is_full: bool,
    /// Whether it takes no part any more: closed, or driven by another run.
    pub(crate) is_closed: bool,
}

/// The party that a graph waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GraphWait {
    /// It moves by itself.
    Moving,
    /// It is a plan, and has not begun.
    Plan,
    /// The model decides, or answers.
    Model,
    /// A person answers.
    User,
    /// A child run ends.
    Child,
    /// A time comes.
    Time,
    /// Nothing: it takes no part any more.
    Nothing,
}

impl LiveGraph {
    pub(crate) fn new(graph: Graph, diagnostics: Vec<Diagnostic>) -> Self {
        Self {
            graph,
            why: None,
            raw: None,
            diagnostics,
            seen: None,
            shown: None,
            shown_at: None,
            is_dirty: true,
            is_reported: false,
            asked: BTreeSet::new(),
            is_full: false,
            is_closed: false,
        }
    }

    pub(crate) fn id(&self) -> &GraphId {
        &self.graph.id
    }

    /// The party that it waits for.
    pub(crate) fn need(&self) -> GraphWait {
        if self.is_closed {
            return GraphWait::Nothing;
        }
        if !self.graph.begun {
            return GraphWait::Plan;
        }
        match self.why {
            None => GraphWait::Moving,
            Some(Why::UserNeeded | Why::PermissionNeeded) => GraphWait::User,
            Some(Why::Waiting) if self.waits_for_child() => GraphWait::Child,
            Some(Why::Waiting) => GraphWait::Time,
            Some(Why::Decide | Why::Canceled) if self.is_asked_alone() => GraphWait::User,
            Some(Why::Decide | Why::Finished | Why::Canceled) => GraphWait::Model,
        }
    }

    /// Whether it goes on later, without the model.
    pub(crate) fn waits(&self) -> bool {
        matches!(
            self.need(),
            GraphWait::Plan | GraphWait::User | GraphWait::Child | GraphWait::Time
        )
    }

    /// Whether a child run works for it.
    pub(crate) fn waits_for_child(&self) -> bool {
        self.nodes_in(NodeState::Waiting(Wait::Child))
            .next()
            .is_some()
    }

    /// Whether a question of it is open.
    pub(crate) fn has_question(&self) -> bool {
        let waits = [Wait::User, Wait::Approval];
        let mut waits = waits.into_iter().map(NodeState::Waiting);
        !self.is_closed
            && (waits.any(|state| self.nodes_in(state).next().is_some())
                || self.uncertain().any(|node| self.is_asked(node)))
    }

    /// Effects of unknown outcome.
    pub(crate) fn uncertain(&self) -> impl Iterator<Item = &Node> {
        self.nodes_in(NodeState::Uncertain)
    }

    /// Whether a person was asked about this attempt.
    pub(crate) fn is_asked(&self, node: &Node) -> bool {
        let attempt = (node.action.id.clone(), node.attempt);
        self.asked.contains(&attempt)
    }

    /// Whether effects of unknown outcome are all that it waits for, and a person was asked about each.
    fn is_asked_alone(&self) -> bool {
        let mut uncertain = self.uncertain().peekable();
        uncertain.peek().is_some()
            && uncertain.all(|node| self.is_asked(node))
            && !self.graph.nodes.iter().any(Node::needs_decision)
    }

    fn nodes_in(&self, state: NodeState) -> impl Iterator<Item = &Node> {
        self.graph
            .nodes
            .iter()
            .filter(move |node| node.state == state)
    }

    /// Facts of it for later declarations. A graph that waits for a decision is open, so that it may be revised.
    pub(crate) fn known(&self) -> KnownGraph {
        let known = KnownGraph::from(&self.graph);
        let is_open = known.open || self.why == Some(Why::Decide);
        let open = is_open && !self.is_closed;
        KnownGraph { open, ..known }
    }
}
