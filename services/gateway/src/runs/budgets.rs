//! Which budgets a run's calls count for.

use domain::budget::BudgetScope;
use store::BudgetLine;

use crate::runs::Runs;
use crate::runs::grant::Grant;

impl Runs {
    /// The budgets that a call of this run counts for, in the order of the configuration.
    pub fn budgets_of(&self, grant: &Grant) -> Vec<BudgetLine> {
        let now = self.0.clock.now_ms();
        let snapshot = &grant.snapshot;
        let lines = self.0.budgets.iter().filter_map(|budget| {
            let id = match budget.scope {
                BudgetScope::Run => snapshot.run_id.to_string(),
                BudgetScope::Agent => snapshot.agent_id.to_string(),
                BudgetScope::Endpoint => snapshot.endpoint_id.to_string(),
                BudgetScope::Workspace => snapshot.workspace_id.to_string(),
            };
            if budget.only.as_ref().is_some_and(|only| *only != id) {
                return None;
            }
            let (window_start, resets_at) = budget.window.around(now);
            Some(BudgetLine {
                budget: budget.clone(),
                subject: format!("{}/{id}", snapshot.workspace_id),
                window_start,
                resets_at,
            })
        });
        lines.collect()
    }
}
