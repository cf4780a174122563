//! Approval of a plan: a question action that precedes all actions of a declaration.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use action_graph::accept::accept_draft;
use action_graph::action::{Action, Executor, ExecutorKind, FailureMode};
use action_graph::bind::is_binding;
use action_graph::code::Code;
use action_graph::declaration::{Payload, Section};
use action_graph::graph::Graph;
use action_graph::ids::ActionId;
use action_graph::json::pretty;
use action_graph::node::{Node, Sent};
use action_graph::rules::KnownFacts;
use action_graph::schedule::ActionOutcome;
use action_graph::validate::{AcceptedDeclaration, Context};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::config::PLAN;
use crate::execute::ExecutorEnv;
use crate::execute::human::DESCRIPTION;
use crate::host::GraphAgentHost;
use crate::program::GRAPH_RUN;
use crate::session::GraphDriver;

/// Id prefix of the question. A random suffix avoids collisions with ids of the model and of earlier plans.
const ID: &str = "plan_approval_";

/// True if an action is the question about a plan.
pub(crate) fn is_question(id: &ActionId) -> bool {
    id.as_str().starts_with(ID)
}

/// Outcome of the question about a plan.
pub(crate) fn outcome(outcome: ActionOutcome) -> ActionOutcome {
    match outcome {
        // A refusal is a failure: the graph stops, and no decision of the model can continue it.
        ActionOutcome::Ok {
            satisfying: false, ..
        } => ActionOutcome::failed(Code::ApprovalDenied, "the user refused the plan", Sent::Yes),
        outcome => outcome,
    }
}

/// Records the answered question at its action, for calls of the plan.
pub(crate) fn note_answer(graph: &mut Graph, id: &ActionId, question: Option<String>) {
    let node = graph.nodes.iter_mut().find(|node| node.action.id == *id);
    if let Some(node) = node {
        node.cleared_by = question;
    }
}

/// The question whose answer approved the plan of an action.
pub(crate) fn approval_of(graph: &Graph, node: &Node) -> Option<String> {
    // Instances of a fan-out have the dependencies of their declared action.
    let declared = node.parent.as_ref().and_then(|parent| graph.node(parent));
    let action = &declared.unwrap_or(node).action;
    let question = action.depends_on.iter().find(|id| is_question(id))?;
    graph.node(question)?.cleared_by.clone()
}

/// True if the agent's configuration or the program requires an approval of plans.
fn is_wanted(env: &ExecutorEnv<impl GraphAgentHost>) -> bool {
    let event = &env.context.event;
    let is_requested = event.data.get("approve").and_then(Value::as_str) == Some(PLAN);
    env.config.approves_plans || event.event_type == GRAPH_RUN && is_requested
}

/// Adds the question about its plan to a declaration, if required. The error is a reason for the model.
pub(crate) fn with_question(
    driver: &GraphDriver<impl GraphAgentHost>,
    accepted: AcceptedDeclaration,
    facts: &KnownFacts,
) -> Result<AcceptedDeclaration, String> {
    if !is_wanted(&driver.graphs.env) || !accepted.declaration.actions().iter().any(acts) {
        return Ok(accepted);
    }
    let mut draft = accepted.declaration;
    let title = format!("Run this plan? {}", draft.title);
    let hash = draft.source.semantic_sha256.clone();
    let details = shown(draft.actions(), &draft.source.sections);
    // An approval of a plan that is not shown completely would be blind.
    if details.chars().count() > DESCRIPTION {
        return Err(format!(
            "the plan has more than {DESCRIPTION} characters, which no question shows: declare fewer actions"
        ));
    }
    let question = question(&title, &details);
    let Payload::ActionGraph { actions, .. } = &mut draft.payload else {
        return Err("its payload is no graph".to_owned());
    };
    // Every action depends on the answer, also those with other dependencies.
    for action in actions.iter_mut() {
        action.depends_on.push(question.id.clone());
    }
    actions.insert(0, question);
    let context = Context {
        catalog: &driver.graphs.env.catalog,
        known: facts,
        rules: &driver.rules,
    };
    // Validate again: the added question changes dependencies and the number of actions.
    let mut checked = accept_draft(draft, context).map_err(|faults| {
        let fault = faults.iter().find(|one| one.is_error());
        fault.map_or_else(String::new, |one| format!("{}: {}", one.code, one.line()))
    })?;
    // Repeated declarations are detected by the hash without the random question.
    checked.declaration.source.semantic_sha256 = hash;
    checked.diagnostics = accepted.diagnostics;
    Ok(checked)
}

/// True if an action has effects outside the runtime and the user.
fn acts(action: &Action) -> bool {
    let kind = action.resolved.as_ref().map(|one| one.kind);
    !matches!(kind, Some(ExecutorKind::Runtime | ExecutorKind::Human))
}

fn question(title: &str, details: &str) -> Action {
    let id = format!("{ID}{:08x}", Uuid::new_v4().as_fields().0);
    let mut action = Action::new(&id, Executor::named(ExecutorKind::Human, "approve"));
    "Approve the plan".clone_into(&mut action.title);
    action.description.clone_from(&action.title);
    let input = json!({"title": title.trim(), "details": details});
    action.input = input.as_object().cloned().unwrap_or_default();
    // A refusal stops the entire graph.
    action.failure.mode = FailureMode::Abort;
    action
}

/// Text sections that a declaration may refer to.
type Sections = BTreeMap<String, Section>;

/// Text of a plan: each action with its target, declared arguments, list and task.
fn shown(actions: &[Action], sections: &Sections) -> String {
    let lines = actions.iter().enumerate().map(|(index, action)| {
        let target = action.resolved.as_ref().map_or("", |one| &one.target);
        let input = readable(&Value::Object(action.input.clone()), sections);
        // Arguments must not end the code block.
        let input = pretty(&input).replace("```", "'''");
        let mut text = format!("{}. {}: `{target}`", index + 1, action.title);
        if let Some(each) = &action.for_each {
            let (items, max) = (&each.items, each.max);
            let _ = write!(text, ", for each item of {items}, at most {max}");
        }
        let _ = write!(text, "\n```json\n{input}\n```");
        if let Some(reference) = &action.prompt_ref {
            let _ = write!(text, "\n{}", source(&reference.to_string(), sections));
        }
        text
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Arguments with each binding replaced by the source of its value.
fn readable(value: &Value, sections: &Sections) -> Value {
    match value {
        Value::Object(object) if is_binding(value) => {
            let reference = object.get("$ref").and_then(Value::as_str);
            Value::from(source(reference.unwrap_or_default(), sections))
        }
        Value::Object(object) => {
            let members = object.iter();
            let members = members.map(|(key, one)| (key.clone(), readable(one, sections)));
            Value::Object(members.collect())
        }
        Value::Array(list) => list.iter().map(|one| readable(one, sections)).collect(),
        other => other.clone(),
    }
}

/// Text of a section, or the name of a later value.
fn source(reference: &str, sections: &Sections) -> String {
    let section = reference.strip_prefix("md:");
    let section = section.and_then(|id| sections.get(&id.to_lowercase()));
    match section {
        Some(section) => section.text.clone(),
        None => format!("from {reference}"),
    }
}
