//! Dependencies: unknown ones, those of earlier graphs, cycles and depth.

use std::collections::BTreeMap;

use crate::action::{ActionEnding, Condition, FailureMode};
use crate::code::Code;
use crate::declaration::Declaration;
use crate::diagnostic::{Diagnostic, Diagnostics};
use crate::ids::ActionId;
use crate::validate::context::{Context, fields, started_actions};

pub(super) fn check(draft: &mut Declaration, context: Context<'_>, found: &mut Diagnostics) {
    settle_names(draft, context, found);
    let index: BTreeMap<&ActionId, usize> = draft
        .actions()
        .iter()
        .enumerate()
        .map(|(index, action)| (&action.id, index))
        .collect();
    let edges: Vec<Vec<usize>> = draft
        .actions()
        .iter()
        .map(|action| {
            // Conditions and settled data order actions, too, so a cycle may go through them.
            let when = action.when.as_ref().and_then(Condition::waits_for);
            let data = settled_data(action);
            let all = action.depends_on.iter().chain(when).chain(&data);
            all.filter_map(|id| index.get(id).copied()).collect()
        })
        .collect();
    check_order(draft, &edges, context, found);
    check_never(draft, found);
}

/// Actions whose status or error is read: they must end first, and need not succeed.
pub(super) fn settled_data(action: &crate::action::Action) -> Vec<ActionId> {
    use crate::reference::{Reference, ResultPart};
    let mut others = Vec::new();
    let mut add = |reference: &Reference| {
        if let Reference::Action {
            id,
            part: ResultPart::Error | ResultPart::Status,
            ..
        } = reference
            && !others.contains(id)
        {
            others.push(id.clone());
        }
    };
    crate::bind::visit_input(&action.input, "", &mut |_, one| {
        if let crate::bind::BindingToken::Binding(reference) = one {
            add(&reference);
        }
    });
    action
        .context_refs
        .iter()
        .chain(&action.prompt_ref)
        .for_each(&mut add);
    if let Some(each) = &action.for_each {
        add(&each.items);
    }
    others
}

/// Drops dependencies that earlier graphs have met, and reports the others.
fn settle_names(draft: &mut Declaration, context: Context<'_>, found: &mut Diagnostics) {
    let fields = fields(draft.source.origin);
    let mut local: Vec<ActionId> = draft
        .actions()
        .iter()
        .map(|action| action.id.clone())
        .collect();
    local.extend(started_actions(draft, context.known).cloned());
    for action in draft.actions_mut() {
        let at = format!("{}/{}", action.pointer, fields.depends);
        let mut met = Vec::new();
        let own = action.id.clone();
        // Reported dependencies are dropped, so that later gates see only valid edges.
        action.depends_on.retain(|id| {
            if *id == own {
                let message = format!("`{id}` depends on itself");
                found.add(Code::SelfDependency, at.clone(), message);
                return false;
            }
            if local.contains(id) {
                return true;
            }
            // Answers are no actions, so there is nothing to wait for.
            if context.known.answers.contains(id.as_str()) {
                let message = format!("`{id}` is an answer, nothing to wait for");
                found.add(Code::Repaired, at.clone(), message);
                return false;
            }
            match context.known.action(id) {
                // Met already: recorded for readers, but no edge.
                Some((_, action)) if action.satisfying => met.push(id.clone()),
                Some((graph, action)) => {
                    let message = format!("`{id}` of `{}` is {}", graph.id, action.status);
                    found.add(Code::DependencyUnsatisfied, at.clone(), message);
                }
                None => {
                    let allowed = local
                        .iter()
                        .filter(|one| **one != own)
                        .map(|id| id.0.clone());
                    let message = format!("there is no action `{id}`");
                    let one = Diagnostic::new(Code::UnknownDependency, at.clone(), message);
                    found.push(one.allow(allowed));
                }
            }
            false
        });
        action.met.extend(met);
    }
}

/// Reports the actions of a cycle, or the depth of the graph (Kahn's algorithm).
fn check_order(
    draft: &Declaration,
    edges: &[Vec<usize>],
    context: Context<'_>,
    found: &mut Diagnostics,
) {
    let count = edges.len();
    let mut waiting: Vec<usize> = edges.iter().map(Vec::len).collect();
    let mut followers = vec![Vec::new(); count];
    for (index, edges) in edges.iter().enumerate() {
        for &edge in edges {
            followers[edge].push(index);
        }
    }
    let mut ready: Vec<usize> = (0..count).filter(|&index| waiting[index] == 0).collect();
    let mut depth = vec![1_usize; count];
    let mut done = 0;
    while let Some(index) = ready.pop() {
        done += 1;
        for &follower in &followers[index] {
            depth[follower] = depth[follower].max(depth[index] + 1);
            waiting[follower] -= 1;
            if waiting[follower] == 0 {
                ready.push(follower);
            }
        }
    }
    let fields = fields(draft.source.origin);
    // Actions that were never ready form or follow a cycle.
    if done < count {
        let cycle = one_cycle(edges, &waiting);
        let names: Vec<_> = cycle
            .iter()
            .map(|&at| draft.actions()[at].id.as_str())
            .collect();
        if let Some(&first) = cycle.first() {
            let at = format!("{}/{}", draft.actions()[first].pointer, fields.depends);
            let message = format!("cycle: {}", names.join(" → "));
            found.add(Code::DependencyCycle, at, message);
        }
        return;
    }
    // Depth is known only without a cycle.
    let max = context.rules.limits.graph_depth;
    let deepest = (0..count).max_by_key(|&index| depth[index]);
    let Some(deepest) = deepest.filter(|&index| depth[index] > max / 2) else {
        return;
    };
    let at = draft.actions()[deepest].pointer.clone();
    let message = format!("the longest chain has {} actions", depth[deepest]);
    let code = if depth[deepest] > max {
        Code::TooDeep
    } else {
        Code::DepthOver16
    };
    found.add(code, at, message);
}

/// A cycle among the actions that still wait.
fn one_cycle(edges: &[Vec<usize>], waiting: &[usize]) -> Vec<usize> {
    let Some(start) = (0..edges.len()).find(|&index| waiting[index] > 0) else {
        return Vec::new();
    };
    let mut path = vec![start];
    loop {
        let last = path[path.len() - 1];
        // Each waiting action waits for another one, so the walk ends in a cycle.
        let Some(&next) = edges[last].iter().find(|&&edge| waiting[edge] > 0) else {
            return path;
        };
        if let Some(begin) = path.iter().position(|&one| one == next) {
            path.drain(..begin);
            path.push(next);
            return path;
        }
        path.push(next);
    }
}

/// Conditions that contradict a dependency.
fn check_never(draft: &Declaration, found: &mut Diagnostics) {
    for action in draft.actions() {
        let Some(Condition::Ending { action: other, is }) = &action.when else {
            continue;
        };
        if !action.depends_on.contains(other) {
            continue;
        }
        // `continue` opens the edge after a failure, so the condition can hold.
        let continues = draft
            .actions()
            .iter()
            .any(|one| one.id == *other && one.failure.last() == FailureMode::Continue);
        let never = *is == ActionEnding::Blocked || *is == ActionEnding::Failed && !continues;
        if never {
            let at = format!("{}/when", action.pointer);
            let message = format!("it depends on the success of `{other}`");
            found.add(Code::NeverRuns, at, message);
        }
    }
}
