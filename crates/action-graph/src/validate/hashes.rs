//! Hashes of an accepted declaration: one of its full form, one of only its work.

use serde_json::{Value, json};

use crate::action::Action;
use crate::declaration::Declaration;
use crate::json::canonical;
use crate::print::envelope;
use secrets::digest::sha256_hex;

/// Sets the hash of the work.
pub(super) fn set_semantic(draft: &mut Declaration) {
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
pub(super) fn set_accepted(draft: &mut Declaration) {
    draft.source.accepted_sha256 = sha256_hex(canonical(&envelope(draft)));
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
