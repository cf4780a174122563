//! Unconfirmed dispatches: runs whose dispatch commit has an unknown outcome, because the connection to the
//! database was lost. They were not posted, so they continue once they are found.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::id::WorkspaceId;
use protocol::run::RunStatus;
use store::StoreError;
use tokio::time::Instant;

use crate::deps::RunDeps;
use crate::executor::RunExecutor;
use crate::inputs::RunInputs;

/// Maximum number of entries. Recovery ends further ones as orphans.
const MAX_PENDING: usize = 1024;
/// Maximum number of single lookups per round.
const MAX_LOOKUPS: usize = 32;
/// Maximum bytes of their contexts.
const MAX_BYTES: usize = 64 * 1024 * 1024;

pub(super) struct Unconfirmed {
    workspace: WorkspaceId,
    inputs: Box<RunInputs>,
    /// Time until which the commit may still become visible.
    until: Instant,
}

/// Dispatches with an unknown outcome. Their runs stay in the registry of live runs, so that no sweep takes
/// them.
pub(super) struct UnconfirmedDispatches {
    pub(super) deps: Arc<RunDeps>,
    pub(super) executor: Arc<RunExecutor>,
    pub(super) pending: Mutex<Vec<Unconfirmed>>,
}

impl UnconfirmedDispatches {
    // Consistent after a panic: it changes by one step at a time.
    fn pending(&self) -> MutexGuard<'_, Vec<Unconfirmed>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a run, to be resolved by polling.
    pub(super) fn add(&self, workspace: WorkspaceId, inputs: Box<RunInputs>) {
        let mut all = self.pending();
        let bytes = all
            .iter()
            .map(|one| one.inputs.context_bytes())
            .sum::<usize>();
        // A dropped entry is no lost run: recovery ends it as an orphan, and its event can be retried.
        if all.len() < MAX_PENDING && bytes + inputs.context_bytes() <= MAX_BYTES {
            all.push(Unconfirmed {
                workspace,
                inputs,
                until: Instant::now() + 2 * self.deps.limits.lease,
            });
        }
    }

    /// Queries all entries, renews the leases of stored runs, and drives them. On an error the entries stay.
    pub(super) async fn resolve(&self) -> Result<(), StoreError> {
        let ids: Vec<_> = self.pending().iter().map(|one| one.inputs.run.id).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let (owner, lease) = (&self.deps.owner, self.deps.limits.lease);
        // Taken before the database reads its clock, so that the lease ends here first.
        let requested_at = Instant::now();
        let renewed = self
            .deps
            .store
            .leases()
            .renew_leases(owner, ids, lease)
            .await?;
        // After the query: on an error the entries stay.
        let all = std::mem::take(&mut *self.pending());
        let mut absent = Vec::new();
        for one in all {
            let id = one.inputs.run.id;
            let may_come = requested_at < one.until || renewed.busy.contains(&id);
            match renewed.held.get(&id) {
                Some(cancel_requested_at) => self.resume(one, *cancel_requested_at, requested_at),
                None if may_come => absent.push(one),
                None => {}
            }
        }
        self.keep_absent(absent).await;
        Ok(())
    }

    /// Drives a run whose lease was renewed.
    fn resume(&self, mut one: Unconfirmed, cancel_requested_at: Option<i64>, held_at: Instant) {
        let run = &mut one.inputs.run;
        tracing::info!(run.id = %run.id, "run {} was stored before the database connection broke; it continues", run.id);
        run.cancel_requested_at = cancel_requested_at;
        let id = run.id;
        if let Some(dispatch) = &mut one.inputs.dispatch {
            dispatch.lease_requested_at = Some(held_at);
        }
        self.executor.spawn(id, one.workspace, Some(one.inputs));
    }

    /// Keeps entries whose commit may still become visible. It looks up a few of them per round and drops those
    /// with another status.
    async fn keep_absent(&self, absent: Vec<Unconfirmed>) {
        let mut absent = absent.into_iter();
        let mut looked_at = Vec::new();
        for one in absent.by_ref().take(MAX_LOOKUPS) {
            let found = self.deps.find_run(&one.workspace, one.inputs.run.id);
            match found.await {
                Ok(Some(run)) if run.status != RunStatus::Running => {}
                _ => looked_at.push(one),
            }
        }
        // The next round begins with the others.
        let mut all = self.pending();
        all.splice(0..0, absent);
        all.append(&mut looked_at);
    }
}
