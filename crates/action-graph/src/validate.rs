//! Validation: the gates that a parsed declaration passes before anything runs.

mod arguments;
mod context;
mod edges;
mod effects;
mod executors;
mod limits;
mod references;
mod shape;

use std::collections::BTreeMap;

use secrets::digest::sha256_hex;
use serde_json::{Value, json};

pub use arguments::{check_bound, check_input};
pub use context::Context;

pub use crate::declaration::AcceptedDeclaration;

use crate::action::Action;
use crate::declaration::Declaration;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::json::canonical;

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
    set_semantic(&mut draft);
    let repeats = limits::check(&mut draft, context, &mut found);
    // Errors of all gates at once: a model repairs them in one reply.
    if found.has_errors() {
        return Err(found.finish(max));
    }
    // Last: limits may raise the durability, which is part of the hash.
    set_accepted(&mut draft);
    Ok(AcceptedDeclaration {
        declaration: draft,
        constants,
        diagnostics: found.finish(max),
        repeats,
    })
}

/// Sets the hash of the work.
fn set_semantic(draft: &mut Declaration) {
    let position = |id| draft.actions().iter().position(|action| action.id == id);
    let work: Vec<Value> = draft
        .actions()
        .iter()
        .map(|action| {
            // Positions instead of ids: renamed actions are the same work.
            let edges = action.depends_on.iter().map(|id| position(id.clone()));
            json!([work(action), edges.collect::<Vec<_>>()])
        })
        .collect();
    // An answer or a decision has no work to repeat.
    if !work.is_empty() {
        draft.source.semantic_sha256 = sha256_hex(canonical(&Value::from(work)));
    }
}

/// Sets the hash of the declaration in its final form, after limits have settled durability.
fn set_accepted(draft: &mut Declaration) {
    let mut accepted = json!(draft);
    if let Some(members) = accepted.as_object_mut() {
        // The raw text has a hash of its own.
        members.remove("source");
    }
    draft.source.accepted_sha256 = sha256_hex(canonical(&accepted));
}

/// The work of an action without its names, titles and reasons.
fn work(action: &Action) -> Value {
    let (kind, target) = match &action.resolved {
        Some(resolved) => (Some(resolved.kind), Some(&resolved.target)),
        None => (action.executor.kind, action.executor.target.as_ref()),
    };
    json!([
        kind,
        target,
        action.input,
        action.prompt_ref,
        action.when,
        action.for_each,
        action.repeat
    ])
}

/// Hash of the work of one action, without names and titles: equal work has an equal hash.
pub fn action_hash(action: &Action) -> String {
    sha256_hex(canonical(&work(action)))
}
