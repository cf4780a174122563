//! Rule 15: cancel, deadline, abort and exhausted budget; and quiescence.

use crate::action::{Class, FailureMode};
use crate::code::Code;
use crate::graph::StopReason;
use crate::ids::ActionId;
use crate::node::{BlockReason, Node, NodeState, Wait};
use crate::schedule::{Command, IgnoredEvent, StepState, Why};

impl StepState<'_> {
    /// Stops the graph. A budget that is used up lets running actions end; anything else aborts them.
    pub(super) fn stop(&mut self, stop: StopReason) {
        // The first stop decides, but a cancel may end the attempts that a budget lets run.
        if matches!(self.graph.stop, Some(other) if other != StopReason::Budget || stop == StopReason::Budget)
        {
            return self.count(IgnoredEvent::Late);
        }
        // A finished graph keeps its result.
        if self.graph.begun && self.graph.nodes.iter().all(|node| node.state.is_terminal()) {
            return self.count(IgnoredEvent::Late);
        }
        self.halt(stop);
    }

    /// Stops the graph, also when the last action ended with this very step.
    pub(super) fn halt(&mut self, stop: StopReason) {
        // A plan that never started is over, too.
        self.graph.begun = true;
        self.graph.stop = Some(stop);
        self.changed = true;
        for position in 0..self.graph.nodes.len() {
            let is_drained = stop == StopReason::Budget
                && self.graph.nodes[position].state == NodeState::Running;
            if !is_drained {
                self.cancel(position, stop.code());
            }
        }
    }

    pub(super) fn cancel_action(&mut self, id: &ActionId) {
        let position = self.graph.position(id).filter(|&position| {
            let state = self.graph.nodes[position].state;
            !state.is_terminal()
                && state != NodeState::Uncertain
                && !self.graph.nodes[position].aborting
        });
        let Some(position) = position else {
            return self.count(IgnoredEvent::Late);
        };
        // Collected first: cancelling moves nodes while edges are read.
        let own = |at: &usize| self.graph.edges(*at).parent == Some(position);
        let instances: Vec<_> = (0..self.graph.nodes.len()).filter(own).collect();
        self.cancel(position, Code::Canceled);
        for instance in instances {
            self.cancel(instance, Code::Canceled);
        }
    }

    /// Cancels one node, or asks its attempt to end.
    pub(super) fn cancel(&mut self, position: usize, why: Code) {
        let grace_ms = self.graph.settings.grace_ms;
        let node = &mut self.graph.nodes[position];
        let abort = Command::Abort {
            id: node.action.id.clone(),
            attempt: node.attempt,
            grace_ms,
        };
        match node.state {
            NodeState::Running if !node.aborting => {
                // Not canceled yet: the executor has a grace period to report the real end.
                node.aborting = true;
                let (id, attempt) = (node.action.id.clone(), node.attempt);
                let at = self.now.saturating_add(u64::from(grace_ms));
                self.effects.push(abort);
                self.effects.push(Command::SetTimer { id, attempt, at });
                self.changed = true;
            }
            NodeState::Waiting(Wait::User | Wait::Child | Wait::External | Wait::Timer) => {
                // Suspended attempts have no running call, so they end at once.
                node.end_attempt(self.now, Some(why), None);
                self.effects.push(abort);
                self.go(position, NodeState::Canceled, Some(why));
            }
            // A waived action was decided about; a stop does not change its outcome.
            NodeState::Blocked(_) if node.waived => {}
            NodeState::Pending
            | NodeState::FanOut
            | NodeState::Waiting(_)
            | NodeState::Blocked(_) => {
                self.go(position, NodeState::Canceled, Some(why));
            }
            _ => {}
        }
    }

    /// The grace period of an aborted attempt ended without confirmation.
    pub(super) fn grace_over(&mut self, position: usize) {
        let now = self.now;
        let node = &mut self.graph.nodes[position];
        node.aborting = false;
        node.end_attempt(now, Some(Code::Canceled), None);
        let state = match node.class() {
            // Without confirmation the call may still take effect.
            Class::AtMostOnce => NodeState::Uncertain,
            Class::Replayable | Class::Keyed => NodeState::Canceled,
        };
        self.go(position, state, Some(Code::Canceled));
    }

    /// The reason that nothing moves without an outside event.
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
