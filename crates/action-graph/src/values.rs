//! Values of references and conditions while a graph runs, and the facts that later declarations may use.

use serde_json::Value;

use crate::action::{ActionEnding, Condition, Test};
use crate::graph::Graph;
use crate::node::{Node, NodeState};
use crate::policy::Visibility;
use crate::reference::{Reference, ResultPart};
use crate::result::summary::summary_of;
use crate::rules::{KnownAction, KnownGraph};

impl Graph {
    /// The value of a reference as seen from a node; `None` where it does not exist.
    pub fn value_of(&self, reference: &Reference, from: Option<&Node>) -> Option<Value> {
        match reference {
            Reference::Action { id, part, pointer } => {
                part_of(self.node(id)?, *part)?.pointer(pointer).cloned()
            }
            Reference::Artifact(name) => {
                let outputs = self.nodes.iter().filter_map(|node| node.output.as_ref());
                let mut artifacts = outputs.flat_map(|output| &output.artifacts);
                let found = artifacts.find(|(one, _)| one == name);
                found.map(|(_, reference)| reference.as_str().into())
            }
            Reference::Item(pointer) => from?.item.as_ref()?.value.pointer(pointer).cloned(),
            Reference::Own(pointer) => from?.output.as_ref()?.value.pointer(pointer).cloned(),
            constant => self.constants.get(constant).cloned(),
        }
    }

    /// Readers of the value of a reference.
    pub(crate) fn readers_of(&self, reference: &Reference, from: Option<&Node>) -> Visibility {
        let node = match reference {
            Reference::Action {
                id,
                part: ResultPart::Output | ResultPart::Summary | ResultPart::Error,
                ..
            } => self.node(id),
            Reference::Item(_) => return from.map_or(Visibility::Model, |node| node.taint),
            _ => None,
        };
        node.map_or(Visibility::Model, Node::visibility)
    }

    pub(crate) fn holds(&self, condition: &Condition, from: Option<&Node>) -> bool {
        match condition {
            Condition::Ending { action, is } => {
                let Some(node) = self.node(action) else {
                    return false;
                };
                match is {
                    ActionEnding::Completed => node.state == NodeState::Completed,
                    ActionEnding::Failed => node.state == NodeState::Failed,
                    ActionEnding::Skipped => node.state == NodeState::Skipped,
                    ActionEnding::Blocked => matches!(node.state, NodeState::Blocked(_)),
                }
            }
            Condition::Value {
                reference,
                test,
                negate,
            } => {
                let value = self.value_of(reference, from);
                passes(value.as_ref(), test) != *negate
            }
        }
    }
}

fn part_of(node: &Node, part: ResultPart) -> Option<Value> {
    let is_completed = node.state == NodeState::Completed;
    match part {
        ResultPart::Output if is_completed => {
            node.output.as_ref().map(|output| output.value.clone())
        }
        ResultPart::Summary if is_completed => node
            .output
            .as_ref()
            .map(|output| summary_of(output).0.into()),
        ResultPart::Output | ResultPart::Summary => None,
        ResultPart::Error => node
            .error
            .as_ref()
            .map(|error| error.message.as_str().into()),
        ResultPart::Status => Some(node.state.status().as_str().into()),
    }
}

fn passes(value: Option<&Value>, test: &Test) -> bool {
    let number = value.and_then(Value::as_f64);
    match test {
        Test::Exists => value.is_some_and(|value| !value.is_null()),
        Test::Equals(expected) => value == Some(expected),
        Test::In(list) => value.is_some_and(|value| list.contains(value)),
        Test::Less(limit) => number.is_some_and(|number| number < *limit),
        Test::More(limit) => number.is_some_and(|number| number > *limit),
    }
}

impl From<&Graph> for KnownGraph {
    /// The facts about a graph for later declarations. The caller sets whether its results are gone.
    fn from(graph: &Graph) -> Self {
        let actions = graph.nodes.iter().map(|node| {
            // Only a completed action has a value: an output of an earlier attempt is outdated.
            let output = node
                .output
                .as_ref()
                .filter(|_| node.state == NodeState::Completed);
            let action = KnownAction {
                status: node.state.status().as_str().to_owned(),
                satisfying: node.satisfying,
                private: node.visibility() > Visibility::Model,
                summary: output
                    .map(|output| summary_of(output).0)
                    .unwrap_or_default(),
                output: output.map(|output| output.value.clone()),
                error: node.error.as_ref().map(|error| error.message.clone()),
            };
            (node.action.id.clone(), action)
        });
        // A failed graph with blocked actions may still be decided about, or revised.
        let is_settled = graph.nodes.iter().all(|node| node.state.is_terminal());
        Self {
            id: graph.id.clone(),
            open: graph.stop.is_none() && !is_settled,
            expired: false,
            actions: actions.collect(),
        }
    }
}
