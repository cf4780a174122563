//! Stored form of a graph: a small head per step, and immutable bodies.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::action::{Action, Class};
use crate::graph::Graph;
use crate::ids::ActionId;
use crate::node::{ActionOutput, FanOutItem, Node, NodeState, Sent};
use crate::result::deliver::policy_of;
use crate::result::summary::summary_of;
use crate::result::tokens::head_bytes;
use secrets::digest::sha256_hex;

/// Version of the stored form.
const VERSION: u16 = 1;
/// Bytes of a head: of the 200 KiB of a record, the rest is for what the service adds.
const HEAD_BYTES: usize = 184 << 10;
/// Bytes of a summary in a head.
const SUMMARY: usize = 1 << 10;

/// The run that drives a graph. No clock decides: a later owner has a higher epoch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOwner {
    pub run: String,
    pub attempt: u32,
    /// Take-overs so far.
    pub epoch: u64,
}

/// The head of a graph: states, attempts, keys and references; no bodies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredGraph {
    pub version: u16,
    /// The conversation that it belongs to.
    pub conversation: String,
    /// The run that drives it.
    pub owner: GraphOwner,
    /// Key of the declaration's body.
    pub declaration: String,
    /// The graph without nodes, values and transitions.
    pub graph: Graph,
    /// Its nodes without actions, inputs and outputs.
    pub nodes: Vec<StoredNode>,
    pub outputs: BTreeMap<ActionId, StoredOutput>,
    /// Keys of inputs and items by action.
    pub inputs: BTreeMap<ActionId, String>,
}

/// A stored node: its id, and its members that differ from those of a new node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredNode {
    pub id: ActionId,
    #[serde(flatten)]
    pub members: Map<String, Value>,
}

/// A stored output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredOutput {
    /// Key of its body.
    pub key: String,
    /// SHA-256 of the body.
    pub sha256: String,
    /// Size of the output in bytes.
    pub bytes: usize,
    /// Its summary, at most 1 KiB.
    pub summary: String,
}

/// A body: written once under its key, before the head that names it.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordBody {
    /// Its key below the graph's prefix.
    pub key: String,
    pub content: Value,
}

/// A stored graph that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// It was written by a later version.
    #[error("version {0} of a stored graph is not known: upgrade the runner")]
    Version(u16),
    /// It belongs to another conversation, and counts as absent.
    #[error("the stored graph belongs to another conversation")]
    Foreign,
    /// A body is gone or damaged.
    #[error("body `{0}` is missing or damaged: close the graph and tell the user")]
    Body(String),
    #[error("the head has {0} bytes, at most 188416 are stored: declare smaller graphs")]
    TooLarge(usize),
}

/// The declared actions and constants of a generation.
#[derive(Serialize, Deserialize)]
struct GenerationBody {
    actions: Vec<Action>,
    constants: Vec<(crate::reference::Reference, Value)>,
}

/// The input and item of a node.
#[derive(Serialize, Deserialize)]
struct BoundInput {
    input: Option<Value>,
    item: Option<FanOutItem>,
}

/// Splits a graph into its head and bodies. An output that `previous` names already has no body again.
pub fn store(
    graph: &Graph,
    conversation: &str,
    owner: GraphOwner,
    previous: Option<&StoredGraph>,
) -> Result<(StoredGraph, Vec<RecordBody>), RestoreError> {
    let declared = graph.declared().map(|node| node.action.clone());
    let constants = graph.constants.clone();
    let body = GenerationBody {
        actions: declared.collect(),
        constants: constants.into_iter().collect(),
    };
    let mut blobs = vec![blob("declaration", &body)];
    let mut head = StoredGraph {
        version: VERSION,
        conversation: conversation.to_owned(),
        owner,
        declaration: blobs[0].key.clone(),
        graph: graph.without_nodes(),
        // Only differences from a new node, because the head is bounded.
        nodes: graph.nodes.iter().map(slim).collect(),
        outputs: BTreeMap::new(),
        inputs: BTreeMap::new(),
    };
    for (position, node) in graph.nodes.iter().enumerate() {
        let id = &node.action.id;
        if node.output.is_some() {
            let (stored, body) = stored_output(graph, position, previous);
            head.outputs
                .extend(stored.map(|stored| (id.clone(), stored)));
            blobs.extend(body);
        }
        if node.input.is_some() || node.item.is_some() {
            let (input, item) = (node.input.clone(), node.item.clone());
            let body = blob(&format!("{id}.input"), &BoundInput { input, item });
            head.inputs.insert(id.clone(), body.key.clone());
            blobs.push(body);
        }
    }
    // Last: only the summaries can be shortened.
    fit(&mut head)?;
    Ok((head, blobs))
}

/// Shortens summaries until the head keeps its bound.
fn fit(head: &mut StoredGraph) -> Result<(), RestoreError> {
    for max_bytes in [SUMMARY, SUMMARY / 8, 0] {
        // Shorter in steps: a summary is useful even if cut, and states are never dropped.
        for output in head.outputs.values_mut() {
            let short = head_bytes(&output.summary, max_bytes).len();
            output.summary.truncate(short);
        }
        let size = serde_json::to_vec(head).map_or(0, |bytes| bytes.len());
        if size <= HEAD_BYTES {
            return Ok(());
        }
        if max_bytes == 0 {
            return Err(RestoreError::TooLarge(size));
        }
    }
    Ok(())
}

/// The output of a node, and its body unless `previous` has it.
fn stored_output(
    graph: &Graph,
    position: usize,
    previous: Option<&StoredGraph>,
) -> (Option<StoredOutput>, Option<RecordBody>) {
    let node = &graph.nodes[position];
    let Some(output) = &node.output else {
        return (None, None);
    };
    let id = &node.action.id;
    let name = format!("{id}.{}", attempt_of_output(node));
    // The list of a fan-out has no attempt of its own.
    let before = previous.filter(|_| !node.is_fan_out());
    let before = before.and_then(|previous| previous.outputs.get(id));
    // Outputs are immutable for one attempt, so the stored body is still valid.
    if let Some(before) = before.filter(|one| is_named(&one.key, &name)) {
        return (Some(before.clone()), None);
    }
    let output = stored_form(output, stores_full(graph, position));
    let body = blob(&name, &output);
    let stored = StoredOutput {
        key: body.key.clone(),
        sha256: hash(&body.content),
        bytes: output.bytes,
        summary: head_bytes(&summary_of(&output).0, SUMMARY).to_owned(),
    };
    (Some(stored), Some(body))
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

/// The differences of a node from a new one, without the values of bodies.
fn slim(node: &Node) -> StoredNode {
    let mut members = members(&node.without_values());
    // Compared as JSON: new fields need no code here.
    let new = members_of_new(&node.action.id);
    members.retain(|name, value| new.get(name) != Some(value));
    StoredNode {
        id: node.action.id.clone(),
        members,
    }
}

fn members(node: &Node) -> Map<String, Value> {
    match serde_json::to_value(node) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

fn members_of_new(id: &ActionId) -> Map<String, Value> {
    let executor = crate::action::Executor::default();
    members(&Node::new(Action::new(id.as_str(), executor)))
}

/// The node again, before its action and values are put back.
fn restored_node(stored: StoredNode) -> Option<Node> {
    let mut members = members_of_new(&stored.id);
    members.extend(stored.members);
    serde_json::from_value(Value::Object(members)).ok()
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

/// A body under a name and the beginning of its hash, so that a key never changes its content.
fn blob(name: &str, content: &impl Serialize) -> RecordBody {
    let content = serde_json::to_value(content).unwrap_or_default();
    let key = format!("{name}.{}", &hash(&content)[..16]);
    RecordBody { key, content }
}

fn hash(content: &Value) -> String {
    sha256_hex(crate::json::canonical(content))
}

/// Joins a head with its bodies. The restored graph has the same future as the stored one.
pub fn restore(
    head: StoredGraph,
    conversation: &str,
    load: &mut dyn FnMut(&str) -> Option<Value>,
) -> Result<Graph, RestoreError> {
    // First: later versions may have changed every other field.
    if head.version != VERSION {
        return Err(RestoreError::Version(head.version));
    }
    // A key of another conversation must not open its results.
    if head.conversation != conversation {
        return Err(RestoreError::Foreign);
    }
    let mut read = |key: &str| load(key).ok_or_else(|| RestoreError::Body(key.to_owned()));
    let damaged = |key: &str| RestoreError::Body(key.to_owned());
    let body = read(&head.declaration)?;
    let body: GenerationBody =
        serde_json::from_value(body).map_err(|_| damaged(&head.declaration))?;
    let mut graph = head.graph;
    let nodes = head
        .nodes
        .into_iter()
        .map(restored_node)
        .collect::<Option<_>>();
    graph.nodes = nodes.ok_or_else(|| damaged("head"))?;
    graph.constants = body.constants.into_iter().collect();
    let actions: BTreeMap<_, _> = body
        .actions
        .into_iter()
        .map(|action| (action.id.clone(), action))
        .collect();
    for node in &mut graph.nodes {
        // Instances have no stored action: they are made again from their fan-out.
        let id = node.action.id.clone();
        let declared = node.parent.as_ref().unwrap_or(&id);
        let action = actions
            .get(declared)
            .ok_or_else(|| damaged(&head.declaration))?;
        node.action = match node.parent {
            Some(_) => instance(action, &id),
            None => action.clone(),
        };
        if let Some(key) = head.inputs.get(&id) {
            let bound: BoundInput = serde_json::from_value(read(key)?).map_err(|_| damaged(key))?;
            node.input = bound.input;
            node.item = bound.item;
        }
        if let Some(stored) = head.outputs.get(&id) {
            // A damaged body must not run as input of a later action.
            let content = read(&stored.key)?;
            if hash(&content) != stored.sha256 {
                return Err(damaged(&stored.key));
            }
            let output: ActionOutput =
                serde_json::from_value(content).map_err(|_| damaged(&stored.key))?;
            node.output = Some(output);
        }
    }
    // Links are not stored.
    graph.relink();
    Ok(graph)
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

impl StoredGraph {
    /// Hands the graph to another run. The caller has to know that the owner's run is over.
    pub fn take_over(&mut self, run: &str, attempt: u32) {
        // A higher epoch marks the later owner; no clock decides.
        self.owner = GraphOwner {
            run: run.to_owned(),
            attempt,
            epoch: self.owner.epoch + 1,
        };
    }
}
