//! Rules 17 to 20: decisions about uncertain, failed and blocked actions, and revisions.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::action::Action;
use crate::code::Code;
use crate::declaration::{DecisionChoice, GraphDecision};
use crate::graph::{StopReason, Transition};
use crate::node::{ActionError, ActionOutput, Node, NodeState};
use crate::reference::Reference;
use crate::schedule::{Actor, Command, DecisionEvents, IgnoredEvent, StepState};

impl DecisionEvents<'_, '_> {
    pub(super) fn decide(&mut self, decision: &GraphDecision, by: Actor) {
        // A decision names its graph, so that a late one does not hit a later graph.
        if decision.graph != self.step.graph.id {
            return self.step.count(IgnoredEvent::Refused);
        }
        match (&decision.action, decision.choice) {
            // Before the lookup of the action: abort ends the graph in every state.
            (_, DecisionChoice::Abort) => self.step.stop(StopReason::Aborted),
            (None, DecisionChoice::Cancel) => self.step.stop(StopReason::Canceled),
            (Some(id), DecisionChoice::Cancel) => self.step.cancel_action(id),
            (None, DecisionChoice::Execute) if !self.step.graph.begun => {
                self.step.graph.begun = true;
                self.step.changed = true;
            }
            (None, DecisionChoice::Resume) => self.step.unblock(None),
            (Some(id), choice) => match self.step.graph.position(id) {
                Some(position) => self.decide_action(position, choice, decision, by),
                None => self.step.count(IgnoredEvent::Refused),
            },
            _ => self.step.count(IgnoredEvent::Refused),
        }
    }

    fn decide_action(
        &mut self,
        position: usize,
        choice: DecisionChoice,
        decision: &GraphDecision,
        by: Actor,
    ) {
        let node = &self.step.graph.nodes[position];
        if node.state == NodeState::Uncertain {
            // The model cannot know whether an effect happened.
            return match by {
                Actor::Model => self.step.count(IgnoredEvent::Refused),
                Actor::Human | Actor::StatusTool => self.resolve(position, choice, decision),
            };
        }
        // A refusal of the user is final: the model must not overrule it.
        let is_final = matches!(
            node.error.as_ref().map(|error| error.code),
            Some(Code::ApprovalDenied)
        );
        if self.step.graph.stop.is_some() || node.parent.is_some() || is_final {
            return self.step.count(IgnoredEvent::Refused);
        }
        let is_blocked = matches!(node.state, NodeState::Blocked(_)) && !node.waived;
        match choice {
            DecisionChoice::Retry if node.needs_decision() => self.retry(position, decision),
            DecisionChoice::Resume if is_blocked => self.step.unblock(Some(position)),
            DecisionChoice::Continue | DecisionChoice::Skip
                if node.needs_decision() || is_blocked =>
            {
                // Waived and satisfying: dependents may run, and the failure stays visible.
                let node = &mut self.step.graph.nodes[position];
                node.waived = true;
                node.satisfying = true;
                self.step.changed = true;
                self.step.unblock(None);
            }
            _ => self.step.count(IgnoredEvent::Refused),
        }
    }

    /// Rule 17: the user or a status tool states whether the effect happened.
    fn resolve(&mut self, position: usize, choice: DecisionChoice, decision: &GraphDecision) {
        let stopped = self.step.graph.stop.is_some();
        let node = &mut self.step.graph.nodes[position];
        match choice {
            DecisionChoice::Continue => {
                // The user may state the output of the effect.
                let output = decision.input.clone().map_or(Value::Null, Value::Object);
                node.output = Some(ActionOutput::json(output));
                node.error = None;
                node.satisfying = true;
                self.step.go(position, NodeState::Completed, None);
            }
            DecisionChoice::Skip => {
                let error = node.error.take();
                let code = Code::UncertainEffect;
                let message = error.map_or_else(String::new, |error| error.message);
                self.step.fail(position, ActionError { code, message });
            }
            DecisionChoice::Retry if !stopped => {
                node.decisions = node.decisions.saturating_add(1);
                // A new series of attempts, with an approval of its own.
                node.tries = 0;
                node.cleared = false;
                self.step.go(position, NodeState::Pending, None);
            }
            _ => self.step.count(IgnoredEvent::Refused),
        }
    }

    /// Rule 18: a failed action runs again, at most three times by decision.
    fn retry(&mut self, position: usize, decision: &GraphDecision) {
        let max = self.step.graph.settings.decisions;
        let node = &mut self.step.graph.nodes[position];
        if node.decisions >= max {
            return self.step.count(IgnoredEvent::Refused);
        }
        node.decisions += 1;
        // A fan-out with results runs only its lost instances again, whose input comes from the items.
        let is_fan_out = node.is_fan_out() && node.output.is_some();
        if let Some(input) = &decision.input
            && !is_fan_out
        {
            node.action.input.clone_from(input);
        }
        self.step.renew(position);
        if is_fan_out {
            self.step.go(position, NodeState::FanOut, None);
            let own = |at: &usize| self.step.graph.edges(*at).parent == Some(position);
            let instances: Vec<_> = (0..self.step.graph.nodes.len()).filter(own).collect();
            for instance in instances {
                let node = &mut self.step.graph.nodes[instance];
                let is_lost = node.needs_decision()
                    || matches!(node.state, NodeState::Blocked(_) | NodeState::Canceled);
                if is_lost {
                    node.decisions = node.decisions.saturating_add(1);
                    self.step.renew(instance);
                    self.step.go(instance, NodeState::Pending, None);
                }
            }
        } else {
            self.step.go(position, NodeState::Pending, None);
        }
        // Actions that the failure has blocked may become ready.
        self.step.unblock(None);
    }

    /// Rule 20: new actions instead of those that have not started.
    pub(super) fn revise(&mut self, actions: Vec<Action>, constants: BTreeMap<Reference, Value>) {
        let must_stay = |node: &Node| {
            node.waived || !matches!(node.state, NodeState::Pending | NodeState::Blocked(_))
        };
        let immutable = |action: &Action| {
            let node = self.step.graph.node(&action.id);
            node.is_some_and(|node| must_stay(node) || node.parent.is_some())
        };
        // Validation has checked this; the graph may have moved in the meantime.
        if self.step.graph.stop.is_some() || actions.iter().any(immutable) {
            return self.step.count(IgnoredEvent::Refused);
        }
        let old = std::mem::take(&mut self.step.graph.nodes);
        // Instances stay with their fan-out, which has started.
        let (remaining, replaced): (Vec<_>, Vec<_>) = old
            .into_iter()
            .partition(|node| must_stay(node) || node.parent.is_some());
        let names = actions.iter().map(|action| action.id.clone());
        let names: BTreeSet<_> = names.collect();
        // Only removed actions are reported: a replaced one keeps its id.
        for node in replaced
            .iter()
            .filter(|node| !names.contains(&node.action.id))
        {
            self.step.graph.seq += 1;
            let transition = Transition {
                seq: self.step.graph.seq,
                at: self.step.now,
                id: node.action.id.clone(),
                attempt: node.attempt,
                from: node.state,
                to: NodeState::Canceled,
                why: Some(Code::Canceled),
            };
            self.step.notes.push(Command::Note(transition));
        }
        self.step.graph.nodes = remaining;
        self.step
            .graph
            .nodes
            .extend(actions.into_iter().map(Node::new));
        self.step.graph.constants.extend(constants);
        self.step.graph.generation += 1;
        // Before any rule runs: positions have changed.
        self.step.graph.relink();
        self.step.changed = true;
    }
}

impl StepState<'_> {
    fn renew(&mut self, position: usize) {
        let node = &mut self.graph.nodes[position];
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
        for position in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[position];
            let is_chosen = only.is_none_or(|only| only == position);
            if is_chosen && matches!(node.state, NodeState::Blocked(_)) && !node.waived {
                self.go(position, NodeState::Pending, None);
            }
        }
        // Even if no node was blocked, the decision counts as a change.
        self.changed = true;
    }
}
