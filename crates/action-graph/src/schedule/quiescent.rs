//! Whether nothing moves without the outside, and why.

use crate::action::FailureMode;
use crate::node::{Block, Node, State, Wait};
use crate::schedule::{StepState, Why};

impl StepState<'_> {
    pub(super) fn quiescent(&self) -> Option<Why> {
        let graph = &self.graph;
        let moves = |node: &Node| node.state == State::Running || node.state.is_timed();
        if !graph.begun || graph.nodes.iter().any(moves) {
            return None;
        }
        if graph.stop.is_some() {
            // An attempt that a budget lets end may still be suspended.
            let is_open = graph.nodes.iter().any(Node::has_open_attempt);
            return Some(if is_open { Why::Waiting } else { Why::Canceled });
        }
        let is = |state: State| graph.nodes.iter().any(|node| node.state == state);
        if is(State::Uncertain) || self.needs_model() {
            return Some(Why::Decide);
        }
        if graph.nodes.iter().all(Node::is_settled) {
            return Some(Why::Finished);
        }
        if is(State::Waiting(Wait::User)) {
            return Some(Why::UserNeeded);
        }
        if is(State::Waiting(Wait::Approval)) {
            return Some(Why::PermissionNeeded);
        }
        Some(Why::Waiting)
    }

    /// Whether a failure that awaits a decision of the model blocks another action.
    fn needs_model(&self) -> bool {
        let graph = &self.graph;
        let blocked = (0..graph.nodes.len()).filter(|&place| {
            let node = &graph.nodes[place];
            node.state == State::Blocked(Block::Dependency) && !node.waived
        });
        let mut causes = blocked.flat_map(|place| &graph.edges(place).needs);
        causes.any(|&place| {
            let node = &graph.nodes[place];
            node.needs_decision()
                && (node.state == State::Completed
                    || node.action.failure.last() == FailureMode::AskModel)
        })
    }
}
