//! Stored form of a graph: a head for each step, and immutable bodies with its values.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::action::{Action, Class};
use crate::graph::Graph;
use crate::ids::ActionId;
use crate::node::{ActionOutput, FanOutItem, Node, NodeState, Sent};
use crate::reference::Reference;
use crate::result::deliver::policy_of;
use crate::result::summary::summary_of;
use secrets::digest::sha256_hex;

/// Version of the stored form.
const VERSION: u16 = 1;

/// The head of a graph: states, attempts, keys and references; no values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredGraph {
    pub version: u16,
    /// The graph without values and transitions.
    pub graph: Graph,
    /// Key of the body with the constants.
    pub constants: String,
    /// Keys of outputs by action.
    pub outputs: BTreeMap<ActionId, String>,
    /// Keys of inputs and items by action.
    pub inputs: BTreeMap<ActionId, String>,
}

impl StoredGraph {
    /// Keys of all bodies that a restore reads.
    pub fn keys(&self) -> impl Iterator<Item = &String> {
        let values = self.inputs.values().chain(self.outputs.values());
        values.chain([&self.constants])
    }
}

/// A body: its key ends with a hash of its content, so that a key never changes its content.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordBody {
    pub key: String,
    pub content: Value,
}

/// A stored graph that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It was written by a later version.
    #[error("version {0} of a stored graph is not known: upgrade the runner")]
    Version(u16),
    /// A body is gone or damaged.
    #[error("body `{0}` is missing or damaged: close the graph and tell the user")]
    Body(String),
}

/// The input and item of a node.
#[derive(Serialize, Deserialize)]
struct BoundInput {
    input: Option<Value>,
    item: Option<FanOutItem>,
}

/// Splits a graph into its head and bodies. An output that `previous` names already has no body again.
pub fn store(graph: &Graph, previous: Option<&StoredGraph>) -> (StoredGraph, Vec<RecordBody>) {
    let constants: Vec<_> = graph.constants.iter().collect();
    let mut bodies = vec![body("constants", &constants)];
    let mut head = StoredGraph {
        version: VERSION,
        graph: graph.without_values(),
        constants: bodies[0].key.clone(),
        outputs: BTreeMap::new(),
        inputs: BTreeMap::new(),
    };
    for (position, node) in graph.nodes.iter().enumerate() {
        let id = &node.action.id;
        if let Some(output) = &node.output {
            let name = format!("{id}.{}", attempt_of_output(node));
            // The list of a fan-out has no attempt of its own.
            let before = previous.filter(|_| !node.is_fan_out());
            let before = before.and_then(|previous| previous.outputs.get(id));
            // Outputs are immutable for one attempt, so the stored body is still valid.
            let before = before.filter(|key| is_named(key, &name)).cloned();
            let key = before.unwrap_or_else(|| {
                let output = stored_form(output, stores_full(graph, position));
                bodies.push(body(&name, &output));
                bodies[bodies.len() - 1].key.clone()
            });
            head.outputs.insert(id.clone(), key);
        }
        if node.input.is_some() || node.item.is_some() {
            let (input, item) = (node.input.clone(), node.item.clone());
            let body = body(&format!("{id}.input"), &BoundInput { input, item });
            head.inputs.insert(id.clone(), body.key.clone());
            bodies.push(body);
        }
    }
    (head, bodies)
}

fn is_named(key: &str, name: &str) -> bool {
    let rest = key.strip_prefix(name);
    rest.is_some_and(|rest| rest.starts_with('.'))
}

/// The attempt that made the output: an earlier one while a later one runs.
fn attempt_of_output(node: &Node) -> u32 {
    if node.state == NodeState::Completed {
        return node.attempt;
    }
    let mut attempts = node.attempts.iter().rev();
    let made = attempts.find(|one| one.sent == Some(Sent::Yes) && one.code.is_none());
    made.map_or(0, |one| one.n)
}

/// True if the complete output is stored: `store_full: false` is refused for actions that run at most once.
fn stores_full(graph: &Graph, position: usize) -> bool {
    let node = &graph.nodes[position];
    policy_of(graph, node).store_full || node.class() == Class::AtMostOnce
}

/// The output, or only its summary.
fn stored_form(output: &ActionOutput, stores_full: bool) -> ActionOutput {
    if stores_full {
        return output.clone();
    }
    // The full text is dropped for good: `store_full: false` requests that.
    let (summary, source) = summary_of(output);
    ActionOutput {
        value: summary.as_str().into(),
        summary: Some((summary, source)),
        ..output.clone()
    }
}

/// A body under a name and the beginning of its hash.
fn body(name: &str, content: &impl Serialize) -> RecordBody {
    let content = serde_json::to_value(content).unwrap_or_default();
    let key = format!("{name}.{}", hash(&content));
    RecordBody { key, content }
}

fn hash(content: &Value) -> String {
    let mut hash = sha256_hex(crate::json::canonical(content));
    hash.truncate(16);
    hash
}

/// Joins a head with its bodies. The restored graph has the same future as the stored one.
pub fn restore(
    head: StoredGraph,
    load: &mut dyn FnMut(&str) -> Option<Value>,
) -> Result<Graph, RestoreError> {
    // First: later versions may have changed every other field.
    if head.version != VERSION {
        return Err(RestoreError::Version(head.version));
    }
    let mut graph = head.graph;
    let constants: Vec<(Reference, Value)> = read(&head.constants, load)?;
    graph.constants = constants.into_iter().collect();
    for node in &mut graph.nodes {
        if let Some(key) = head.inputs.get(&node.action.id) {
            let bound: BoundInput = read(key, load)?;
            node.input = bound.input;
            node.item = bound.item;
        }
        if let Some(key) = head.outputs.get(&node.action.id) {
            node.output = Some(read(key, load)?);
        }
    }
    // Links are not stored.
    graph.relink();
    Ok(graph)
}

fn read<T: DeserializeOwned>(
    key: &str,
    load: &mut dyn FnMut(&str) -> Option<Value>,
) -> Result<T, RestoreError> {
    // A damaged body must not run as input of a later action.
    let content = load(key).filter(|content| key.ends_with(&hash(content)));
    let content = content.and_then(|content| serde_json::from_value(content).ok());
    content.ok_or_else(|| RestoreError::Body(key.to_owned()))
}

/// The action of an instance, as the fan-out made it.
pub(crate) fn instance(action: &Action, id: &ActionId) -> Action {
    let mut action = action.clone();
    action.id = id.clone();
    action.depends_on.clear();
    action.when = None;
    action.for_each = None;
    if let Some(resolved) = &mut action.resolved {
        resolved.settles.clear();
    }
    action
}
