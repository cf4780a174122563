//! Quiescence: the reason that nothing moves without an outside event.

use crate::action::FailureMode;
use crate::node::{BlockReason, Node, NodeState, Wait};
use crate::schedule::{StepState, Why};

impl StepState<'_> {
    pub(super) fn quiescent(&self) -> Option<Why> {
        let graph = &self.graph;
        let moves = |node: &Node| node.state == NodeState::Running || node.state.is_timed();
        // Running attempts and due retries will produce events by themselves.
        if !graph.begun || graph.nodes.iter().any(moves) {
            return None;
        }
        if graph.stop.is_some() {
            // An attempt that a budget lets end may still be suspended.
            let is_open = graph.nodes.iter().any(Node::has_open_attempt);
            return Some(if is_open { Why::Waiting } else { Why::Canceled });
        }
        let is = |state: NodeState| graph.nodes.iter().any(|node| node.state == state);
        // Before `Finished`: all nodes may be settled while a failure still blocks some.
        if is(NodeState::Uncertain) || self.needs_model() {
            return Some(Why::Decide);
        }
        if graph.nodes.iter().all(Node::is_settled) {
            return Some(Why::Finished);
        }
        if is(NodeState::Waiting(Wait::User)) {
            return Some(Why::UserNeeded);
        }
        if is(NodeState::Waiting(Wait::Approval)) {
            return Some(Why::PermissionNeeded);
        }
        Some(Why::Waiting)
    }

    /// True if a failure that awaits a decision of the model blocks another action.
    fn needs_model(&self) -> bool {
        let graph = &self.graph;
        let blocked = (0..graph.nodes.len()).filter(|&position| {
            let node = &graph.nodes[position];
            node.state == NodeState::Blocked(BlockReason::Dependency) && !node.waived
        });
        let mut causes = blocked.flat_map(|position| &graph.edges(position).needs);
        causes.any(|&position| {
            let node = &graph.nodes[position];
            node.needs_decision()
                // Unsatisfying results always need the model: their policy covers failures only.
                && (node.state == NodeState::Completed
                    || node.action.failure.last() == FailureMode::AskModel)
        })
    }
}
