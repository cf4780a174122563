//! In-memory state of the graphs of a run.

use std::collections::BTreeSet;

use action_graph::diagnostic::Diagnostic;
use action_graph::graph::Graph;
use action_graph::ids::{ActionId, GraphId};
use action_graph::node::{Node, NodeState, Wait};
use action_graph::project::Projection;
use action_graph::rules::KnownGraph;
use action_graph::schedule::Why;
use tokio::time::Instant;

/// Graph of this run with its state outside the scheduler.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts of a graph"
)]
pub(crate) struct LiveGraph {
    pub(crate) graph: Graph,
    /// Reason for quiescence; absent while the graph moves, and for plans.
    pub(crate) why: Option<Why>,
    /// Model output that declared the graph in this run.
    pub(crate) raw: Option<String>,
    /// Warnings of its declaration.
    pub(crate) diagnostics: Vec<Diagnostic>,
    /// Generation and transition of the last observation.
    pub(crate) seen: Option<(u32, u64)>,
    /// Last projection sent to the user.
    pub(crate) shown: Option<Projection>,
    /// Time of that projection, for the rate limit.
    pub(crate) shown_at: Option<Instant>,
    /// Changed since that projection.
    pub(crate) is_dirty: bool,
    /// The complete final projection was sent.
    pub(crate) is_reported: bool,
    /// Attempts of unknown outcome with a question to a person.
    pub(crate) questioned: BTreeSet<(ActionId, u32)>,
    /// A bound of the records was reached.
    pub(crate) is_full: bool,
    /// Inactive: closed, or driven by another run.
    pub(crate) is_closed: bool,
}

/// Party or condition that a graph waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GraphWait {
    /// None: it moves by itself.
    Moving,
    /// A decision to start: it is a plan.
    Plan,
    /// A decision or answer of the model.
    Model,
    /// An answer of a person.
    User,
    /// The end of a child run.
    Child,
    /// A timer of a wait or a retry.
    Time,
    /// None: it is inactive.
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
            questioned: BTreeSet::new(),
            is_full: false,
            is_closed: false,
        }
    }

    pub(crate) fn id(&self) -> &GraphId {
        &self.graph.id
    }

    /// Party or condition that the graph waits for.
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
            Some(Why::Decide | Why::Canceled) if self.waits_only_for_outcomes() => GraphWait::User,
            Some(Why::Decide | Why::Finished | Why::Canceled) => GraphWait::Model,
        }
    }

    /// True if the graph continues later without the model.
    pub(crate) fn waits(&self) -> bool {
        matches!(
            self.need(),
            GraphWait::Plan | GraphWait::User | GraphWait::Child | GraphWait::Time
        )
    }

    /// True if an action waits for a child run.
    pub(crate) fn waits_for_child(&self) -> bool {
        self.nodes_in(NodeState::Waiting(Wait::Child))
            .next()
            .is_some()
    }

    /// True if a question of the graph is open.
    pub(crate) fn has_question(&self) -> bool {
        let waits = [Wait::User, Wait::Approval];
        let mut waits = waits.into_iter().map(NodeState::Waiting);
        !self.is_closed
            && (waits.any(|state| self.nodes_in(state).next().is_some())
                || self.uncertain().any(|node| self.has_question_about(node)))
    }

    /// Actions with an effect of unknown outcome.
    pub(crate) fn uncertain(&self) -> impl Iterator<Item = &Node> {
        self.nodes_in(NodeState::Uncertain)
    }

    /// True if a question about this attempt was sent.
    pub(crate) fn has_question_about(&self, node: &Node) -> bool {
        let attempt = (node.action.id.clone(), node.attempt);
        self.questioned.contains(&attempt)
    }

    /// True if the graph waits only for answers about effects of unknown outcome.
    fn waits_only_for_outcomes(&self) -> bool {
        let mut uncertain = self.uncertain().peekable();
        uncertain.peek().is_some()
            && uncertain.all(|node| self.has_question_about(node))
            && !self.graph.nodes.iter().any(Node::needs_decision)
    }

    fn nodes_in(&self, state: NodeState) -> impl Iterator<Item = &Node> {
        self.graph
            .nodes
            .iter()
            .filter(move |node| node.state == state)
    }

    /// Facts about the graph for later declarations.
    pub(crate) fn facts(&self) -> KnownGraph {
        let facts = KnownGraph::from(&self.graph);
        // A graph that waits for a decision counts as open, so that it can be revised.
        let is_open = facts.open || self.why == Some(Why::Decide);
        let open = is_open && !self.is_closed;
        KnownGraph { open, ..facts }
    }
}
