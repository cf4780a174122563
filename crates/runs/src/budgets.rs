//! Budgets that the calls of a run count for.

use domain::authorization::{Ancestor, AuthorizationSnapshot};
use protocol::budget::BudgetScope;
use store::BudgetLine;

use crate::budget_cache::WorkspaceBudget;

/// The budgets of a run with this snapshot, in the order of `budgets`. `now`: epoch milliseconds.
pub(super) fn budget_lines(
    budgets: &[WorkspaceBudget],
    snapshot: &AuthorizationSnapshot,
    now: i64,
) -> Vec<BudgetLine> {
    let mut lines: Vec<BudgetLine> = Vec::new();
    for WorkspaceBudget { budget, .. } in budgets {
        let begin = lines.len();
        for id in subjects(snapshot, budget.scope) {
            if budget.only.as_ref().is_some_and(|only| *only != id) {
                continue;
            }
            let subject = format!("{}/{id}", snapshot.workspace_id);
            // A run and its ancestors may share an agent; one call counts once.
            if lines[begin..].iter().any(|line| line.subject == subject) {
                continue;
            }
            let (window_start, resets_at) = budget.window.around(now);
            lines.push(BudgetLine {
                budget: budget.clone(),
                subject,
                window_start,
                resets_at,
            });
        }
    }
    lines
}

/// Subject of the run in this scope, and those of the runs above it.
fn subjects(
    snapshot: &AuthorizationSnapshot,
    scope: BudgetScope,
) -> impl Iterator<Item = String> + '_ {
    let own = match scope {
        BudgetScope::Run => snapshot.run_id.to_string(),
        BudgetScope::Agent => snapshot.agent_id.to_string(),
        BudgetScope::Endpoint => snapshot.endpoint_id.to_string(),
        BudgetScope::Workspace => snapshot.workspace_id.to_string(),
    };
    let of = move |above: &Ancestor| match scope {
        BudgetScope::Run => Some(above.run_id.to_string()),
        BudgetScope::Agent => Some(above.agent_id.to_string()),
        BudgetScope::Endpoint => Some(above.endpoint_id.to_string()),
        BudgetScope::Workspace => None,
    };
    std::iter::once(own).chain(snapshot.ancestors.iter().filter_map(of))
}
