//! Validation: the gates that a parsed declaration passes before anything runs.

mod arguments;
mod edges;
mod effects;
mod executors;
mod hashes;
mod limits;
mod references;
mod shape;

use std::collections::BTreeMap;

use serde_json::Value;

pub use arguments::{check_bound, check_input};
pub use hashes::action_hash;

use crate::catalog::Catalog;
use crate::declaration::{Declaration, DeclarationForm, Intent};
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::ids::{ActionId, GraphId};
use crate::reference::Reference;
use crate::rules::{AgentRules, KnownAction, KnownFacts};

/// Inputs of validation: catalogue, facts and rules.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Executors that may be named.
    pub catalog: &'a Catalog,
    /// Facts of the conversation and the run.
    pub known: &'a KnownFacts,
    /// Rules of the agent.
    pub rules: &'a AgentRules,
}

/// A declaration that passed every gate.
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptedDeclaration {
    /// The declaration; each action is resolved.
    pub declaration: Declaration,
    /// Values of references that are known before anything runs.
    pub constants: BTreeMap<Reference, Value>,
    /// Warnings and repairs.
    pub diagnostics: Vec<Diagnostic>,
    /// The graph whose stored results answer this repetition; nothing runs again.
    pub repeats: Option<GraphId>,
}

/// Passes a draft through all gates, in order; faults of all of them are reported at once.
pub(crate) fn validate(
    mut draft: Declaration,
    mut found: Diagnostics,
    context: Context<'_>,
) -> Result<AcceptedDeclaration, Vec<Diagnostic>> {
    let max = context.rules.limits.diagnostics;
    shape::check(&mut draft, context, &mut found);
    let mut constants = BTreeMap::new();
    references::check(&mut draft, context, &mut constants, &mut found);
    edges::check(&mut draft, context, &mut found);
    executors::check(&mut draft, context, &mut found);
    arguments::check(&draft, context, &mut found);
    effects::check(&mut draft, context, &mut found);
    // After all gates that change the work, before the limits, which compare it.
    hashes::set_semantic(&mut draft);
    let repeats = limits::check(&mut draft, context, &mut found);
    // Errors of all gates at once: a model repairs them in one reply.
    if found.has_errors() {
        return Err(found.finish(max));
    }
    // Last: limits may raise the durability, which is part of the hash.
    hashes::set_accepted(&mut draft);
    Ok(AcceptedDeclaration {
        declaration: draft,
        constants,
        diagnostics: found.finish(max),
        repeats,
    })
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
