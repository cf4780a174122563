//! Runs that were dispatched by the commit of their event, of which nobody has heard: the database went away behind
//! it. Nobody has posted them, so they go on as soon as they are found.

use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::id::{RunId, WorkspaceId};
use protocol::run::RunStatus;
use store::StoreError;
use tokio::time::Instant;

use crate::Runs;
use crate::prepare::Fresh;

/// More of them are left to the sweep, which ends them as orphans.
const MOST: usize = 1024;
/// So many that are not there are asked for one by one at a time.
const LOOKED_AT: usize = 32;
/// And more bytes of contexts.
const MOST_BYTES: usize = 64 * 1024 * 1024;

struct Unheard {
    workspace: WorkspaceId,
    fresh: Box<Fresh>,
    /// Until when its commit may still come to light.
    until: Instant,
}

/// Those of this process. They keep their place among its live runs, so that no sweep takes them.
#[derive(Default)]
pub(super) struct AllUnheard(Mutex<Vec<Unheard>>);

impl AllUnheard {
    // Whole after any panic: it changes by one step at a time.
    fn all(&self) -> MutexGuard<'_, Vec<Unheard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ids(&self) -> Vec<RunId> {
        self.all().iter().map(|one| one.fresh.run.id).collect()
    }
}

impl Runs {
    /// Goes on with a run once the database tells that it is there.
    pub(super) fn look_for(&self, workspace: WorkspaceId, fresh: Box<Fresh>) {
        let mut all = self.0.unheard.all();
        let bytes = all.iter().map(|one| one.fresh.told_bytes()).sum::<usize>();
        if all.len() < MOST && bytes + fresh.told_bytes() <= MOST_BYTES {
            all.push(Unheard {
                workspace,
                fresh,
                until: Instant::now() + 2 * self.0.limits.lease,
            });
        }
    }

    /// Asks for all that are looked for, holds what is there, and drives it. Errors: the database does not answer, and
    /// they are looked for again.
    pub(super) async fn find_unheard(&self) -> Result<(), StoreError> {
        let ids = self.0.unheard.ids();
        if ids.is_empty() {
            return Ok(());
        }
        let (owner, lease) = (&self.0.owner, self.0.limits.lease);
        // Before the database's clock is asked: ours ends first.
        let asked_at = Instant::now();
        let renewed = self
            .0
            .store
            .leases()
            .renew_leases(owner, ids, lease)
            .await?;
        let all = std::mem::take(&mut *self.0.unheard.all());
        let mut absent = Vec::new();
        for one in all {
            let id = one.fresh.run.id;
            let may_come = asked_at < one.until || renewed.busy.contains(&id);
            match renewed.held.get(&id) {
                Some(cancel_requested_at) => self.go_on_with(one, *cancel_requested_at, asked_at),
                None if may_come => absent.push(one),
                None => {}
            }
        }
        self.look_again(absent).await;
        Ok(())
    }

    /// Drives a run that was held just now.
    fn go_on_with(&self, mut one: Unheard, cancel_requested_at: Option<i64>, held_at: Instant) {
        let run = &mut one.fresh.run;
        tracing::info!(run.id = %run.id, "run {} was stored when the database went away, and goes on", run.id);
        run.cancel_requested_at = cancel_requested_at;
        let id = run.id;
        if let Some(beginning) = &mut one.fresh.beginning {
            beginning.asked_at = Some(held_at);
        }
        self.spawn(id, one.workspace, Some(one.fresh));
    }

    /// Keeps what may still come to light. What is there and does not run has begun otherwise, or not yet: a few of them
    /// are asked for each time, for others wait behind this.
    async fn look_again(&self, absent: Vec<Unheard>) {
        let mut absent = absent.into_iter();
        let mut looked_at = Vec::new();
        for one in absent.by_ref().take(LOOKED_AT) {
            let found = self
                .0
                .store
                .runs()
                .find_run(&one.workspace, one.fresh.run.id);
            match found.await {
                Ok(Some(run)) if run.status != RunStatus::Running => {}
                _ => looked_at.push(one),
            }
        }
        // Next time the others.
        let mut all = self.0.unheard.all();
        all.splice(0..0, absent);
        all.append(&mut looked_at);
    }
}
