//! Budgets of workspaces: those of the configuration, and those that the API sets.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use domain::budget::Budget;
use protocol::id::WorkspaceId;
use protocol::principal::Principal;
use store::{BudgetOverride, Store, StoreError};
use tokio::sync::futures::Notified;
use tokio::sync::{Mutex, Notify};
use tokio::time::Instant;

/// Age up to which a read of the table serves calls. Changes by other replicas apply after this time.
const MAX_AGE: Duration = Duration::from_millis(500);
/// Time without calls after which a workspace leaves the cache.
const IDLE: Duration = Duration::from_mins(1);

/// A budget of a workspace, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceBudget {
    /// The budget in force.
    pub budget: Budget,
    /// The budget of the configuration that a change by the API replaces.
    pub replaced: Option<Budget>,
    /// The change by the API. `None`: the configuration is in force.
    pub change: Option<BudgetChange>,
}

/// The last change of a budget by the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetChange {
    /// Epoch milliseconds.
    pub at: i64,
    pub by: Option<Principal>,
}

/// The budgets of a workspace, and the time before their read. Locked during the read: concurrent calls share it.
type CachedBudgets = Mutex<Option<(Instant, Arc<[WorkspaceBudget]>)>>;

/// Budgets by workspace.
pub(crate) struct BudgetCache {
    configured: Arc<[Budget]>,
    workspaces: DashMap<WorkspaceId, Arc<CachedBudgets>>,
    /// Notified after a change by this process.
    changed: Notify,
}

impl BudgetCache {
    pub(crate) fn new(configured: Arc<[Budget]>) -> Self {
        Self {
            configured,
            workspaces: DashMap::new(),
            changed: Notify::new(),
        }
    }

    /// The budgets in force, at most [`MAX_AGE`] old.
    pub(crate) async fn get(
        &self,
        store: &Store,
        workspace: &WorkspaceId,
    ) -> Result<Arc<[WorkspaceBudget]>, StoreError> {
        let entry = Arc::clone(&self.workspaces.entry(workspace.clone()).or_default());
        let mut cached = entry.lock().await;
        if let Some((at, budgets)) = &*cached
            && at.elapsed() < MAX_AGE
        {
            return Ok(Arc::clone(budgets));
        }
        let at = Instant::now();
        let budgets: Arc<[_]> = self.read(store, workspace).await?.into();
        *cached = Some((at, Arc::clone(&budgets)));
        Ok(budgets)
    }

    /// The budgets in force, from the table: first those of the configuration in its order, then others by name.
    pub(crate) async fn read(
        &self,
        store: &Store,
        workspace: &WorkspaceId,
    ) -> Result<Vec<WorkspaceBudget>, StoreError> {
        let overrides = store.usage().budget_overrides(workspace).await?;
        Ok(merged(&self.configured, overrides))
    }

    /// Applies a committed change to waiting calls and to the next call of this process.
    pub(crate) fn invalidate(&self, workspace: &WorkspaceId) {
        self.workspaces.remove(workspace);
        self.changed.notify_waiters();
    }

    /// Waits for a change by this process. Enable it before the budgets are read.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Removes workspaces without recent calls.
    pub(crate) fn forget_idle(&self) {
        self.workspaces.retain(|_, entry| {
            // A locked entry is in use.
            entry.try_lock().map_or(true, |cached| {
                cached.as_ref().is_some_and(|(at, _)| at.elapsed() < IDLE)
            })
        });
    }
}

impl From<BudgetOverride> for WorkspaceBudget {
    fn from(set: BudgetOverride) -> Self {
        Self {
            budget: set.budget,
            replaced: None,
            change: Some(BudgetChange {
                at: set.updated_at,
                by: set.updated_by,
            }),
        }
    }
}

fn merged(configured: &[Budget], mut overrides: Vec<BudgetOverride>) -> Vec<WorkspaceBudget> {
    let mut budgets = Vec::with_capacity(configured.len() + overrides.len());
    for budget in configured {
        let of_name = |set: &BudgetOverride| set.budget.name == budget.name;
        let set = overrides.iter().position(of_name);
        budgets.push(match set.map(|at| overrides.remove(at)) {
            Some(set) => WorkspaceBudget {
                replaced: Some(budget.clone()),
                ..set.into()
            },
            None => WorkspaceBudget {
                budget: budget.clone(),
                replaced: None,
                change: None,
            },
        });
    }
    budgets.extend(overrides.into_iter().map(WorkspaceBudget::from));
    budgets
}

#[cfg(test)]
mod tests {
    use protocol::budget::{BudgetDefinition, BudgetScope, OnReached};

    use super::*;

    fn budget(name: &str, tokens: u64) -> Budget {
        let spec = BudgetDefinition {
            scope: BudgetScope::Run,
            only: None,
            window: None,
            calls: None,
            tokens: Some(tokens),
            cost: None,
            seconds: None,
            on_reached: OnReached::Refuse,
            max_wait_seconds: None,
        };
        Budget::of(name.to_owned(), &spec)
    }

    #[test]
    fn overrides_replace_configured_budgets_in_order() {
        let configured = [budget("b", 1), budget("a", 2)];
        let set = |name, tokens| BudgetOverride {
            budget: budget(name, tokens),
            updated_at: 7,
            updated_by: None,
        };
        let merged = merged(&configured, vec![set("a", 20), set("c", 30)]);
        let shown: Vec<_> = merged
            .iter()
            .map(|one| {
                (
                    one.budget.name.as_str(),
                    one.budget.tokens,
                    one.change.is_some(),
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("b", Some(1), false),
                ("a", Some(20), true),
                ("c", Some(30), true)
            ]
        );
        assert_eq!(merged[1].replaced, Some(budget("a", 2)));
        assert_eq!(merged[2].replaced, None);
    }
}
