//! The adapter of durable workflows: nodes become actions one to one. It is no engine.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::action::{Action, Executor, ExecutorKind};
use crate::declaration::{Declaration, DeclarationForm, Durability, Intent, Payload, Strategy};
use crate::graph::{Graph, GraphStatus};
use crate::ids::ActionId;

/// A workflow of the operator.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workflow {
    pub title: String,
    pub nodes: Vec<WorkflowNode>,
}

/// A node of a workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkflowNode {
    pub id: ActionId,
    pub title: String,
    pub executor: ExecutorKind,
    /// Name of its executor.
    pub target: String,
    #[serde(default)]
    pub input: Map<String, Value>,
    /// Nodes that must succeed first.
    #[serde(default)]
    pub after: Vec<ActionId>,
}

/// The declaration of a workflow: durable, as a graph. It passes every gate like any other.
pub fn from_workflow(workflow: &Workflow) -> Declaration {
    let actions = workflow.nodes.iter().enumerate().map(|(index, node)| {
        let mut action = Action::new(
            node.id.as_str(),
            Executor::named(node.executor, &node.target),
        );
        action.title.clone_from(&node.title);
        action.description.clone_from(&node.title);
        action.operation.clone_from(&node.target);
        action.input.clone_from(&node.input);
        action.depends_on.clone_from(&node.after);
        action.pointer = format!("/payload/actions/{index}");
        action
    });
    let payload = Payload::ActionGraph {
        actions: actions.collect(),
        report: None,
    };
    let mut declaration = Declaration::new(Intent::Execute, payload);
    declaration.title.clone_from(&workflow.title);
    declaration.persist = Some(true);
    declaration.execution.mode = Durability::Durable;
    declaration.execution.strategy = Strategy::Dag;
    declaration.source.origin = DeclarationForm::Workflow;
    declaration
}

/// The status of each node of a workflow.
pub fn workflow_status(graph: &Graph) -> Vec<(ActionId, GraphStatus)> {
    let nodes = graph.declared();
    nodes
        .map(|node| (node.action.id.clone(), node.state.status()))
        .collect()
}
