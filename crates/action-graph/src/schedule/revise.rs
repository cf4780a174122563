//! Rule 20: new actions instead of those that have not started.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::action::Action;
use crate::code::Code;
use crate::graph::Transition;
use crate::node::{Node, NodeState};
use crate::reference::Reference;
use crate::schedule::{Command, DecisionEvents, IgnoredEvent};

impl DecisionEvents<'_, '_> {
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
        let names: std::collections::BTreeSet<_> = names.collect();
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
