//! Which budgets a run's calls count for.

use domain::authorization::{Ancestor, AuthorizationSnapshot};
use domain::budget::BudgetScope;
use store::BudgetLine;

use crate::Runs;
use crate::grant::Grant;

impl Runs {
    /// The budgets that a call of this run counts for, in the order of the configuration. Those of the runs above a child
    /// run are among them, each once.
    pub fn budgets_of(&self, grant: &Grant) -> Vec<BudgetLine> {
        let now = self.0.clock.now_ms();
        let snapshot = &grant.snapshot;
        let mut lines: Vec<BudgetLine> = Vec::new();
        for budget in self.0.budgets.iter() {
            let begin = lines.len();
            for id in subjects(snapshot, budget.scope) {
                if budget.only.as_ref().is_some_and(|only| *only != id) {
                    continue;
                }
                let subject = format!("{}/{id}", snapshot.workspace_id);
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
}

/// The run's own subject of a scope, and those of the runs above it.
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
