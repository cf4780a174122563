//! Usage of calls: the budgets that they count for, their reservations, and their outcomes.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::authorization::AuthorizationSnapshot;
use domain::budget::{CallBound, ExpectedCall, PastCall};
use protocol::id::{AgentId, WorkspaceId};
use store::{
    AuditOutcome, BudgetLine, BudgetSet, ChangeStamp, FinishToolCall, ResetBudget, SetBudget,
    SettleUsage, StoreError,
};
use uuid::Uuid;

use crate::budget_cache::WorkspaceBudget;
use crate::budgets::budget_lines;
use crate::deps::RunDeps;
use crate::grant::Grant;
use crate::recent_calls::CallBook;

/// Calls of this process with a reservation. Their leases are renewed while they run, and lapse when the process
/// dies.
#[derive(Default)]
pub(super) struct ReservedCalls(Mutex<HashSet<Uuid>>);

impl ReservedCalls {
    // Consistent after a panic: it changes by one entry at a time.
    fn calls(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a call until its reservation is dropped.
    pub(crate) fn hold(self: &Arc<Self>, call_id: Uuid) -> Reservation {
        self.calls().insert(call_id);
        Reservation {
            calls: Arc::clone(self),
            call_id,
        }
    }

    /// The calls whose reservations are to be renewed.
    pub(crate) fn held(&self) -> Vec<Uuid> {
        // Copied, because the lock must not be held across an await.
        self.calls().iter().copied().collect()
    }
}

/// Holds the reservation of a call until it is dropped.
pub struct Reservation {
    calls: Arc<ReservedCalls>,
    call_id: Uuid,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.calls.calls().remove(&self.call_id);
    }
}

/// Accounts for the calls of runs.
pub struct CallUsage {
    deps: Arc<RunDeps>,
    reserved: Arc<ReservedCalls>,
    book: CallBook,
}

impl CallUsage {
    pub(super) fn new(deps: Arc<RunDeps>) -> Self {
        let reserved = Arc::default();
        Self {
            deps,
            reserved,
            book: CallBook::default(),
        }
    }

    /// Expected use of a model call of this agent. `None`: this replica has seen none.
    pub fn expected_call(
        &self,
        agent: AgentId,
        model: &str,
        bound: CallBound,
    ) -> Option<ExpectedCall> {
        self.book.expected(agent, model, bound)
    }

    /// Notes a model call for the expectation of later ones.
    pub fn note_call(&self, agent: AgentId, model: &str, call: PastCall) {
        self.book.add(agent, model, call);
    }

    /// The budgets that a call of this run counts for. Budgets of the runs above a child run are included, each once.
    pub async fn budgets_of(&self, grant: &Grant) -> Result<Vec<BudgetLine>, StoreError> {
        let deps = &self.deps;
        let budgets = deps.budgets.get(&deps.store, &grant.run.workspace).await?;
        let now = deps.clock.now_ms();
        Ok(budget_lines(&budgets, &grant.snapshot, now))
    }

    /// The budgets of a workspace in force now: first those of the configuration, then others by name.
    pub async fn budgets_in(
        &self,
        workspace: &WorkspaceId,
    ) -> Result<Vec<WorkspaceBudget>, StoreError> {
        self.deps.budgets.read(&self.deps.store, workspace).await
    }

    /// The budgets in force that limit runs with this snapshot.
    pub async fn budgets_for(
        &self,
        snapshot: &AuthorizationSnapshot,
    ) -> Result<Vec<WorkspaceBudget>, StoreError> {
        let mut budgets = self.budgets_in(&snapshot.workspace_id).await?;
        let now = self.deps.clock.now_ms();
        budgets.retain(|budget| {
            let one = std::slice::from_ref(budget);
            !budget_lines(one, snapshot, now).is_empty()
        });
        Ok(budgets)
    }

    /// Sets a budget of a workspace. Other replicas apply it within a second.
    pub async fn set_budget(
        &self,
        set: SetBudget,
        stamp: ChangeStamp,
    ) -> Result<BudgetSet, StoreError> {
        let workspace = set.workspace.clone();
        let set = self.deps.store.change(stamp, set).await?;
        self.deps.budgets.invalidate(&workspace);
        Ok(set)
    }

    /// Returns a budget to the configuration. False: the API has not set it.
    pub async fn reset_budget(
        &self,
        reset: ResetBudget,
        stamp: ChangeStamp,
    ) -> Result<bool, StoreError> {
        let workspace = reset.workspace.clone();
        let was_set = self.deps.store.change(stamp, reset).await?;
        self.deps.budgets.invalidate(&workspace);
        Ok(was_set)
    }

    /// Holds the reservation of a call of this process by renewing its lease.
    pub fn hold_reservation(&self, call_id: Uuid) -> Reservation {
        self.reserved.hold(call_id)
    }

    pub(super) async fn renew_reservations(&self) -> Result<(), StoreError> {
        let calls = self.reserved.held();
        if calls.is_empty() {
            return Ok(());
        }
        let lease = self.deps.limits.lease;
        self.deps
            .store
            .usage()
            .extend_reservations(calls, lease)
            .await
    }

    /// Records the outcome and the usage of a call in a task of its own, also if the caller has disconnected.
    pub fn record_later(&self, outcome: AuditOutcome, used: Option<SettleUsage>) {
        let store = self.deps.store.clone();
        self.deps.lifecycle.tasks.spawn(async move {
            let recorded = async {
                store.audit_log().audit_outcome(outcome).await?;
                match used {
                    Some(used) => store.write_later(used).await,
                    None => Ok(()),
                }
            };
            if let Err(error) = recorded.await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "cannot record the outcome of a call");
            }
        });
    }

    /// Writes the outcome of a tool call in a task of its own, also if the caller has disconnected.
    pub fn finish_later(&self, finish: FinishToolCall, then: impl FnOnce() + Send + 'static) {
        let store = self.deps.store.clone();
        self.deps.lifecycle.tasks.spawn(async move {
            // A retry with the same key must find the outcome, even if this caller is gone.
            if let Err(error) = store.write(finish).await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "cannot store the outcome of a tool call");
            }
            then();
        });
    }
}
