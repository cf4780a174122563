//! Rule 15: cancel, deadline, abort and the end of a budget.

use crate::action::Class;
use crate::code::Code;
use crate::graph::Stop;
use crate::ids::ActionId;
use crate::node::{State, Wait};
use crate::schedule::{Command, Counted, StepState};

impl StepState<'_> {
    /// Stops the graph. A budget that is used up lets running actions end; anything else aborts them.
    pub(super) fn stop(&mut self, stop: Stop) {
        if matches!(self.graph.stop, Some(other) if other != Stop::Budget || stop == Stop::Budget) {
            return self.count(Counted::Late);
        }
        if self.graph.begun && self.graph.nodes.iter().all(|node| node.state.is_terminal()) {
            return self.count(Counted::Late);
        }
        self.halt(stop);
    }

    /// Stops the graph, also when the last action ended with this very step.
    pub(super) fn halt(&mut self, stop: Stop) {
        self.graph.begun = true;
        self.graph.stop = Some(stop);
        self.changed = true;
        for place in 0..self.graph.nodes.len() {
            let is_drained =
                stop == Stop::Budget && self.graph.nodes[place].state == State::Running;
            if !is_drained {
                self.cancel(place, stop.code());
            }
        }
    }

    pub(super) fn cancel_action(&mut self, id: &ActionId) {
        let place = self.graph.place(id).filter(|&place| {
            let state = self.graph.nodes[place].state;
            !state.is_terminal() && state != State::Uncertain && !self.graph.nodes[place].aborting
        });
        let Some(place) = place else {
            return self.count(Counted::Late);
        };
        let own = |at: &usize| self.graph.edges(*at).parent == Some(place);
        let instances: Vec<_> = (0..self.graph.nodes.len()).filter(own).collect();
        self.cancel(place, Code::Canceled);
        for instance in instances {
            self.cancel(instance, Code::Canceled);
        }
    }

    /// Cancels one node, or asks its attempt to end.
    pub(super) fn cancel(&mut self, place: usize, why: Code) {
        let grace_ms = self.graph.settings.grace_ms;
        let node = &mut self.graph.nodes[place];
        let abort = Command::Abort {
            id: node.action.id.clone(),
            attempt: node.attempt,
            grace_ms,
        };
        match node.state {
            State::Running if !node.aborting => {
                node.aborting = true;
                let (id, attempt) = (node.action.id.clone(), node.attempt);
                let at = self.now.saturating_add(u64::from(grace_ms));
                self.effects.push(abort);
                self.effects.push(Command::SetTimer { id, attempt, at });
                self.changed = true;
            }
            State::Waiting(Wait::User | Wait::Child | Wait::External | Wait::Timer) => {
                node.end_attempt(self.now, Some(why), None);
                self.effects.push(abort);
                self.go(place, State::Canceled, Some(why));
            }
            State::Blocked(_) if node.waived => {}
            State::Pending | State::FanOut | State::Waiting(_) | State::Blocked(_) => {
                self.go(place, State::Canceled, Some(why));
            }
            _ => {}
        }
    }

    /// The grace period of an aborted attempt ended without confirmation.
    pub(super) fn grace_over(&mut self, place: usize) {
        let now = self.now;
        let node = &mut self.graph.nodes[place];
        node.aborting = false;
        node.end_attempt(now, Some(Code::Canceled), None);
        let state = match node.class() {
            Class::AtMostOnce => State::Uncertain,
            Class::Replayable | Class::Keyed => State::Canceled,
        };
        self.go(place, state, Some(Code::Canceled));
    }
}
