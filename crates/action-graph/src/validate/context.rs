//! Inputs of the gates, and what several of them ask about a draft.

use crate::catalog::Catalog;
use crate::declaration::{Declaration, DeclarationForm, Intent};
use crate::ids::ActionId;
use crate::rules::{AgentRules, KnownAction, KnownFacts};

/// Inputs of validation: catalogue, facts and rules.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Executors that may be named.
    pub catalog: &'a Catalog,
    /// Facts of the conversation and the run.
    pub known: &'a KnownFacts,
    pub rules: &'a AgentRules,
}

/// Names of fields in the form in which the model wrote them.
#[derive(Clone, Copy)]
pub(crate) struct FieldNames {
    pub(crate) input: &'static str,
    pub(crate) depends: &'static str,
    pub(crate) target: &'static str,
    pub(crate) actions: &'static str,
}

pub(crate) fn fields(origin: DeclarationForm) -> FieldNames {
    match origin {
        DeclarationForm::Fenced | DeclarationForm::Workflow | DeclarationForm::Injected => {
            FieldNames {
                input: "input",
                depends: "depends_on",
                target: "executor/target",
                actions: "/payload/actions",
            }
        }
        _ => FieldNames {
            input: "args",
            depends: "depends",
            target: "name",
            actions: "/calls",
        },
    }
}

/// Started actions of the graph that a revision changes: they may be depended on, and are not declared again. Actions
/// that have not started are replaced together.
pub(crate) fn started_actions<'a>(
    draft: &Declaration,
    facts: &'a KnownFacts,
) -> impl Iterator<Item = &'a ActionId> {
    let base = draft
        .base
        .as_ref()
        .filter(|_| draft.intent == Intent::Revise);
    let actions = base
        .and_then(|base| facts.graph(base))
        .map(|graph| &graph.actions);
    let is_started =
        |action: &KnownAction| !matches!(action.status.as_str(), "pending" | "blocked");
    let started = actions
        .into_iter()
        .flatten()
        .filter(move |(_, action)| is_started(action));
    started.map(|(id, _)| id)
}
