//! Rule 15: cancel, deadline, abort and exhausted budget.

use crate::action::Class;
use crate::code::Code;
use crate::graph::StopReason;
use crate::ids::ActionId;
use crate::node::{NodeState, Wait};
use crate::schedule::{Command, IgnoredEvent, StepState};

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
}
