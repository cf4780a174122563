//! Rule 20: new actions instead of those that have not started.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::action::Action;
use crate::code::Code;
use crate::graph::Transition;
use crate::node::{Node, State};
use crate::reference::Reference;
use crate::schedule::{Command, Counted, Turn};

impl Turn<'_> {
    pub(super) fn revise(&mut self, actions: Vec<Action>, constants: BTreeMap<Reference, Value>) {
        let is_kept =
            |node: &Node| node.waived || !matches!(node.state, State::Pending | State::Blocked(_));
        let immutable = |action: &Action| {
            let node = self.graph.node(&action.id);
            node.is_some_and(|node| is_kept(node) || node.parent.is_some())
        };
        if self.graph.stop.is_some() || actions.iter().any(immutable) {
            return self.count(Counted::Refused);
        }
        let old = std::mem::take(&mut self.graph.nodes);
        let (kept, replaced): (Vec<_>, Vec<_>) = old
            .into_iter()
            .partition(|node| is_kept(node) || node.parent.is_some());
        let names = actions.iter().map(|action| action.id.clone());
        let names: std::collections::BTreeSet<_> = names.collect();
        for node in replaced
            .iter()
            .filter(|node| !names.contains(&node.action.id))
        {
            self.graph.seq += 1;
            let transition = Transition {
                seq: self.graph.seq,
                at: self.now,
                id: node.action.id.clone(),
                attempt: node.attempt,
                from: node.state,
                to: State::Canceled,
                why: Some(Code::Canceled),
            };
            self.notes.push(Command::Note(transition));
        }
        self.graph.nodes = kept;
        self.graph.nodes.extend(actions.into_iter().map(Node::new));
        self.graph.constants.extend(constants);
        self.graph.generation += 1;
        self.graph.relink();
        self.changed = true;
    }
}
