//! Rules 17 to 19: decisions about uncertain, failed and blocked actions.

use serde_json::Value;

use crate::code::Code;
use crate::declaration::{Choice, Decision};
use crate::graph::Stop;
use crate::node::{Output, State};
use crate::schedule::{Actor, Counted, DecisionEvents, StepState};

impl DecisionEvents<'_, '_> {
    pub(super) fn decide(&mut self, decision: &Decision, by: Actor) {
        if decision.graph != self.step.graph.id {
            return self.step.count(Counted::Refused);
        }
        match (&decision.action, decision.choice) {
            (_, Choice::Abort) => self.step.stop(Stop::Aborted),
            (None, Choice::Cancel) => self.step.stop(Stop::Canceled),
            (Some(id), Choice::Cancel) => self.step.cancel_action(id),
            (None, Choice::Execute) if !self.step.graph.begun => {
                self.step.graph.begun = true;
                self.step.changed = true;
            }
            (None, Choice::Resume) => self.step.unblock(None),
            (Some(id), choice) => match self.step.graph.place(id) {
                Some(place) => self.decide_action(place, choice, decision, by),
                None => self.step.count(Counted::Refused),
            },
            _ => self.step.count(Counted::Refused),
        }
    }

    fn decide_action(&mut self, place: usize, choice: Choice, decision: &Decision, by: Actor) {
        let node = &self.step.graph.nodes[place];
        if node.state == State::Uncertain {
            return match by {
                Actor::Model => self.step.count(Counted::Refused),
                Actor::Human | Actor::StatusTool => self.resolve(place, choice, decision),
            };
        }
        let is_final = matches!(
            node.error.as_ref().map(|error| error.code),
            Some(Code::ApprovalDenied)
        );
        if self.step.graph.stop.is_some() || node.parent.is_some() || is_final {
            return self.step.count(Counted::Refused);
        }
        let is_blocked = matches!(node.state, State::Blocked(_)) && !node.waived;
        match choice {
            Choice::Retry if node.needs_decision() => self.retry(place, decision),
            Choice::Resume if is_blocked => self.step.unblock(Some(place)),
            Choice::Continue | Choice::Skip if node.needs_decision() || is_blocked => {
                let node = &mut self.step.graph.nodes[place];
                node.waived = true;
                node.satisfying = true;
                self.step.changed = true;
                self.step.unblock(None);
            }
            _ => self.step.count(Counted::Refused),
        }
    }

    /// Rule 17: the user or a status tool states whether the effect happened.
    fn resolve(&mut self, place: usize, choice: Choice, decision: &Decision) {
        let stopped = self.step.graph.stop.is_some();
        let node = &mut self.step.graph.nodes[place];
        match choice {
            Choice::Continue => {
                let output = decision.input.clone().map_or(Value::Null, Value::Object);
                node.output = Some(Output::json(output));
                node.error = None;
                node.satisfying = true;
                self.step.go(place, State::Completed, None);
            }
            Choice::Skip => {
                let error = node.error.take();
                let code = Code::UncertainEffect;
                let message = error.map_or_else(String::new, |error| error.message);
                self.step
                    .fail(place, crate::node::ActionError { code, message });
            }
            Choice::Retry if !stopped => {
                node.decisions = node.decisions.saturating_add(1);
                node.tries = 0;
                node.cleared = false;
                self.step.go(place, State::Pending, None);
            }
            _ => self.step.count(Counted::Refused),
        }
    }

    /// Rule 18: a failed action runs again, at most three times by decision.
    fn retry(&mut self, place: usize, decision: &Decision) {
        let most = self.step.graph.settings.decisions;
        let node = &mut self.step.graph.nodes[place];
        if node.decisions >= most {
            return self.step.count(Counted::Refused);
        }
        node.decisions += 1;
        let is_fan_out = node.is_fan_out() && node.output.is_some();
        if let Some(input) = &decision.input
            && !is_fan_out
        {
            node.action.input.clone_from(input);
        }
        self.step.renew(place);
        if is_fan_out {
            self.step.go(place, State::FanOut, None);
            let own = |at: &usize| self.step.graph.edges(*at).parent == Some(place);
            let instances: Vec<_> = (0..self.step.graph.nodes.len()).filter(own).collect();
            for instance in instances {
                let node = &mut self.step.graph.nodes[instance];
                let is_lost = node.needs_decision()
                    || matches!(node.state, State::Blocked(_) | State::Canceled);
                if is_lost {
                    node.decisions = node.decisions.saturating_add(1);
                    self.step.renew(instance);
                    self.step.go(instance, State::Pending, None);
                }
            }
        } else {
            self.step.go(place, State::Pending, None);
        }
        self.step.unblock(None);
    }
}

impl StepState<'_> {
    fn renew(&mut self, place: usize) {
        let node = &mut self.graph.nodes[place];
        node.tries = 0;
        node.iteration = 0;
        node.input = None;
        node.cleared = false;
        node.approval = None;
        node.satisfying = false;
        node.waived = false;
        node.error = None;
    }

    /// Returns blocked actions to pending; the rules evaluate them again.
    pub(super) fn unblock(&mut self, only: Option<usize>) {
        for place in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[place];
            let is_chosen = only.is_none_or(|only| only == place);
            if is_chosen && matches!(node.state, State::Blocked(_)) && !node.waived {
                self.go(place, State::Pending, None);
            }
        }
        self.changed = true;
    }
}
