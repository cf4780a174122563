//! Effects: union of declared and known ones, retry class, approval and visibility.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::action::{AUTHORITY, Action, Class, Effect, ExecutorKind, Idempotency, Resolved};
use crate::code::Code;
use crate::declaration::Declaration;
use crate::diagnostic::Diagnostics;
use crate::rules::Conflicts;
use crate::validate::context::{Context, fields};

pub(super) fn check(draft: &mut Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let input = fields(draft.source.origin).input;
    let asks = draft.policies.wants_approval();
    let visibility = draft.policies.visibility();
    for action in draft.actions_mut() {
        let declared = declared(action);
        let wants_approval = asks || action.policies.wants_approval();
        let own_visibility = action.policies.visibility();
        let is_agent = |resolved: &Resolved| resolved.kind == ExecutorKind::Agent;
        let delegated = match &action.resolved {
            Some(resolved) if is_agent(resolved) => delegated(action, context, input, found),
            _ => BTreeSet::new(),
        };
        let Some(resolved) = &mut action.resolved else {
            continue;
        };
        resolved.effects.extend(declared);
        resolved.effects.extend(delegated);
        // `none` is meaningless next to another effect.
        if resolved.effects.len() > 1 {
            resolved.effects.remove(&Effect::None);
        }
        let entry = context.catalog.find(resolved.kind, &resolved.target);
        let idempotency = match (resolved.kind, entry.map(|entry| entry.idempotency)) {
            // Child runs are found again by their key, so a repeated start makes no second one.
            (ExecutorKind::Agent, Some(Idempotency::Unknown)) => Idempotency::Keyed,
            (_, idempotency) => idempotency.unwrap_or_default(),
        };
        resolved.class = Class::of(&resolved.effects, idempotency);
        // The strictest of catalogue, declaration and action.
        resolved.visibility = resolved.visibility.max(visibility).max(own_visibility);
        let at = &action.pointer;
        let keeps_all = action
            .result
            .as_ref()
            .is_none_or(|policy| policy.store_full);
        // A lost output of such an action cannot be made again.
        if !keeps_all && resolved.class == Class::AtMostOnce {
            let message = "the complete result is stored, since the action runs at most once";
            found.add(
                Code::UnsupportedPolicy,
                format!("{at}/result_policy/store_full"),
                message,
            );
        }
        for effect in resolved.effects.intersection(&context.rules.forbid) {
            let message = format!("`{}` has the effect `{}`", resolved.target, effect.as_str());
            found.add(Code::EffectsForbidden, at, message);
        }
        let is_approved = resolved.effects.is_disjoint(&context.rules.approve);
        let is_human = resolved.kind == ExecutorKind::Human;
        // A question is itself a consent of the user.
        resolved.approval = !is_human && (wants_approval || !is_approved);
        if resolved.approval {
            let names: Vec<_> = resolved.effects.iter().map(|one| one.as_str()).collect();
            let message = format!(
                "`{}` ({}) waits for an approval",
                resolved.target,
                names.join(", ")
            );
            found.add(Code::ApprovalRequired, at, message);
        }
    }
    if context.rules.conflicts == Conflicts::Refuse {
        check_conflicts(draft, found);
    }
}

/// Effects of the tools that a delegation names, as far as they need an approval or are forbidden. The delegation
/// needs that approval itself, since the agent cannot ask.
fn delegated(
    action: &Action,
    context: Context<'_>,
    input: &str,
    found: &mut Diagnostics,
) -> BTreeSet<Effect> {
    let rules = context.rules;
    // Only named tools are checked: without a list the agent gets no guarded tool.
    let tools = action.input.get(AUTHORITY).and_then(|all| all.get("tools"));
    let tools = tools.and_then(Value::as_array).into_iter().flatten();
    let mut effects = BTreeSet::new();
    for (index, name) in tools.enumerate() {
        let Some(name) = name.as_str() else { continue };
        if let Some(entry) = context.catalog.find(ExecutorKind::Tool, name) {
            effects.extend(rules.guarded(&entry.known_effects()));
        } else {
            let at = format!("{}/{input}/{AUTHORITY}/tools/{index}", action.pointer);
            let shown: String = name.chars().take(64).collect();
            let message = format!("there is no tool `{shown}` to give");
            found.add(Code::UnknownTool, at, message);
        }
    }
    effects
}

/// Effects that the model declares: `effects`, or the policy `side_effects`.
fn declared(action: &Action) -> Vec<Effect> {
    let policy = action.policies.named.get("side_effects");
    let words: Vec<&str> = match policy {
        Some(Value::String(word)) => vec![word],
        Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
        Some(other) => {
            let words = other.get("effects").and_then(Value::as_array);
            words
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect()
        }
        None => Vec::new(),
    };
    let named = |word: &&str| {
        Effect::ALL
            .into_iter()
            .find(|effect| effect.as_str() == *word)
    };
    let by_policy = words.iter().filter_map(named);
    action.effects.iter().copied().chain(by_policy).collect()
}

/// Two writes of one resource without a path between them.
fn check_conflicts(draft: &Declaration, found: &mut Diagnostics) {
    let actions = draft.actions();
    for (index, later) in actions.iter().enumerate() {
        for earlier in &actions[..index] {
            let shared = later
                .resources
                .write
                .iter()
                .find(|one| earlier.resources.write.contains(one));
            let Some(shared) = shared else { continue };
            if !reaches(actions, later, earlier) && !reaches(actions, earlier, later) {
                let at = format!("{}/resources/write", later.pointer);
                let message = format!("`{}` writes `{shared}`, too", earlier.id);
                found.add(Code::WriteConflict, at, message);
            }
        }
    }
}

fn reaches(actions: &[Action], from: &Action, to: &Action) -> bool {
    let mut open = vec![from];
    let mut seen = Vec::new();
    while let Some(action) = open.pop() {
        if action.id == to.id {
            return true;
        }
        // Cycles were reported by another gate; the search must still end.
        if seen.contains(&&action.id) {
            continue;
        }
        seen.push(&action.id);
        open.extend(
            actions
                .iter()
                .filter(|one| action.depends_on.contains(&one.id)),
        );
    }
    false
}
