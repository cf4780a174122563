//! Limits of a run and a conversation, durability, and the note for the user.

use crate::action::{Action, Effect, ExecutorKind};
use crate::code::Code;
use crate::declaration::{Declaration, Durability, Intent, Payload};
use crate::diagnostic::Diagnostics;
use crate::ids::GraphId;
use crate::validate::context::{Context, fields};

/// Actions above which a note for the user is expected.
const MANY: usize = 5;

/// Checks the limits. Returns the graph that answers a repetition.
pub(super) fn check(
    draft: &mut Declaration,
    context: Context<'_>,
    found: &mut Diagnostics,
) -> Option<GraphId> {
    let facts = context.known;
    let limits = &context.rules.limits;
    let at = fields(draft.source.origin).actions;
    // Also for revisions, which make no new graph.
    check_instances(draft, context, found);
    if !draft.makes_graph() {
        return None;
    }
    if facts.budget_gone {
        let message = "the budget of this run is used up";
        found.add(Code::BudgetExhausted, "", message);
    }
    if facts.declarations >= limits.declarations {
        let max = limits.declarations;
        let message = format!("{max} declarations were made in this run");
        found.add(Code::TurnLimit, "", message);
    }
    let open = facts.graphs.iter().filter(|graph| graph.open).count();
    if open >= limits.open_graphs {
        found.add(Code::GraphLimit, "", format!("{open} graphs are open"));
    }
    check_persist(draft, context, found);
    check_note(draft, found);
    // The first repetition is answered from the stored graph; a further one is refused.
    match facts.repeats.get(&draft.source.semantic_sha256) {
        Some((graph, 1)) => Some(graph.clone()),
        Some((graph, _)) => {
            let message = format!("this work was declared before and is in `{graph}`");
            found.add(Code::RepeatDeclaration, at, message);
            None
        }
        None => None,
    }
}

fn check_instances(draft: &Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let each = draft
        .actions()
        .iter()
        .filter_map(|action| action.for_each.as_ref());
    let instances: usize = each.map(|each| usize::from(each.max)).sum();
    let max = context.rules.limits.instances;
    if instances > max {
        let at = fields(draft.source.origin).actions;
        let message = format!("{instances} instances, at most {max}");
        found.add(Code::FanOutTooLarge, at, message);
    }
}

/// True if an action may outlive the run or change anything beyond a read.
fn forces_persist(action: &Action, remaining_ms: u64) -> bool {
    let Some(resolved) = &action.resolved else {
        return false;
    };
    // Unknown effects would store nearly every graph.
    let acts = |effect: &Effect| !effect.is_shared() && *effect != Effect::Unknown;
    let waits = resolved.target == "wait"
        && resolved.kind == ExecutorKind::Runtime
        && action.input.get("ms").and_then(serde_json::Value::as_u64) > Some(remaining_ms);
    matches!(resolved.kind, ExecutorKind::Human | ExecutorKind::Agent)
        || resolved.effects.iter().any(acts)
        || waits
}

fn check_persist(draft: &mut Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let is_requested = draft.persist == Some(true) || draft.execution.mode == Durability::Durable;
    if is_requested && !context.known.can_persist {
        let message = "nothing can be stored here";
        found.add(Code::PersistUnavailable, "/persist", message);
    }
    for action in draft.actions() {
        if action.persist == Some(true) && !context.known.can_persist {
            let at = format!("{}/persist", action.pointer);
            found.add(Code::PersistUnavailable, at, "nothing can be stored here");
        }
    }
    let remaining = context.known.remaining_ms;
    let raised = draft
        .actions()
        .iter()
        .any(|action| action.persist == Some(true));
    let forced = draft
        .actions()
        .iter()
        .any(|action| forces_persist(action, remaining));
    if is_requested || raised {
        draft.execution.mode = Durability::Durable;
    // Stored without a request: the graph may outlive this run.
    } else if forced && context.known.can_persist {
        draft.execution.mode = Durability::Durable;
        found.add(Code::PersistUpgraded, "/persist", "the graph is stored");
    }
    if draft.intent == Intent::Plan && !context.known.can_persist {
        found.add(Code::PersistUnavailable, "/intent", "a plan must be stored");
    }
}

/// The note for the user: present for long, durable or risky graphs, and without protocol detail.
fn check_note(draft: &Declaration, found: &mut Diagnostics) {
    let Payload::ActionGraph { actions, .. } = &draft.payload else {
        return;
    };
    let is_risky = |action: &Action| {
        let resolved = action.resolved.as_ref();
        resolved.is_some_and(|one| one.approval || one.kind == ExecutorKind::Agent)
    };
    let is_long = actions.len() > MANY || draft.execution.mode == Durability::Durable;
    if draft.note.trim().is_empty() && (is_long || actions.iter().any(is_risky)) {
        let message = "the user sees no word about this work";
        found.add(Code::NoteMissing, "/message", message);
    }
    // Signs of protocol text in a note for the user.
    let marks = [
        "agent.protocol",
        "\"kind\"",
        "\"calls\"",
        "{\"",
        "$ref",
        "depends_on",
    ];
    if marks.iter().any(|mark| draft.note.contains(mark)) {
        let message = "the message repeats the declaration";
        found.add(Code::NoteRepeatsDsl, "/message", message);
    }
}
