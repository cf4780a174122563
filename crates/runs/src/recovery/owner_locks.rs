//! The session lock of this process, and take-over from owners whose lock is gone.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use domain::run::Run;
use store::{LeaseFilter, LockedOwner, OwnerLock, StoreError};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{BATCH, RunRecovery};
use telemetry::metrics;

/// Pause between two looks. The second look without its lock shows that an owner is dead, so a take-over begins after
/// two pauses at most. A live owner has one pause to lock again.
const BETWEEN_LOOKS: Duration = Duration::from_millis(700);
/// Pause before another try to lock.
const BEFORE_RETRY: Duration = Duration::from_millis(200);
/// Time without looks after a lost session: the fault may have ended the sessions of all replicas.
const AFTER_LOSS: Duration = Duration::from_secs(3);

/// Compares looks.
#[derive(Default)]
struct LockWatch {
    unlocked: HashSet<LockedOwner>,
}

impl LockWatch {
    /// The owners without a lock in this look and in the one before.
    fn dead_after(&mut self, unlocked: HashSet<LockedOwner>) -> HashSet<LockedOwner> {
        let dead = unlocked.intersection(&self.unlocked).copied().collect();
        self.unlocked = unlocked;
        dead
    }
}

impl RunRecovery {
    /// Holds the session lock of this process, and takes over from owners that lost theirs.
    pub(super) async fn keep_owner_lock(&self) {
        if let Some(lock) = self.deps.owner_lock.lock().await.as_mut() {
            let (dead, found) = watch::channel(HashSet::new());
            tokio::join!(self.keep_locked(lock, &dead), self.keep_taking_over(found));
        }
    }

    async fn keep_locked(&self, lock: &mut OwnerLock, dead: &watch::Sender<HashSet<LockedOwner>>) {
        let mut pause = Duration::ZERO;
        loop {
            let error = look_until_lost(lock, pause, dead).await;
            self.deps.live.unlock();
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "session lock of this replica lost, locking again; others take its async and resumable runs over until then"
            );
            // Dead owners of the last look may be alive.
            dead.send_replace(HashSet::new());
            while self.lock_again(lock).await.is_err() {
                tokio::time::sleep(BEFORE_RETRY).await;
            }
            self.deps.live.lock();
            tracing::info!("session lock of this replica held again");
            pause = AFTER_LOSS;
        }
    }

    /// Locks, then marks the runs as lost that others have taken meanwhile.
    async fn lock_again(&self, lock: &mut OwnerLock) -> Result<(), StoreError> {
        lock.lock().await?;
        let ids = self.deps.live.leased();
        let (owner, lease) = (&self.deps.owner, self.deps.limits.lease);
        // Taken before the database reads its clock, so that the lease ends here first.
        let until = Instant::now() + lease;
        let leases = self.deps.store.leases();
        let renewed = leases.renew_leases(owner, ids.clone(), lease).await?;
        for _ in 0..self.deps.live.renew(&ids, &renewed, until) {
            metrics::lease_lost();
        }
        // The lock of a row may belong to a take-over.
        if !renewed.busy.is_empty() {
            return Err(StoreError::Locked);
        }
        // The session may have ended meanwhile.
        lock.hold(Duration::ZERO).await
    }

    async fn keep_taking_over(&self, mut found: watch::Receiver<HashSet<LockedOwner>>) {
        let mut done = HashSet::new();
        while found.changed().await.is_ok() {
            let dead = found.borrow_and_update().clone();
            done.retain(|owner| dead.contains(owner));
            for owner in dead {
                if done.contains(&owner) {
                    continue;
                }
                match self.take_over_from(owner).await {
                    Ok(true) => {
                        done.insert(owner);
                    }
                    // The next look tries again.
                    Ok(false) => {}
                    Err(error) => {
                        tracing::error!(
                            error = &error as &dyn std::error::Error,
                            "recovery failed"
                        );
                    }
                }
            }
        }
    }

    /// Takes over the runs of a dead owner that can continue. False: some were locked or were taken by another replica.
    async fn take_over_from(&self, owner: LockedOwner) -> Result<bool, StoreError> {
        let (mut after, mut is_complete) = (None, true);
        while !self.deps.lifecycle.stopping.is_cancelled() {
            let leases = self.deps.store.leases();
            let runs = leases.unlocked_runs(owner, after, BATCH).await?;
            let is_last = (runs.len() as u64) < BATCH;
            after = runs.last().map(|run| run.id);
            let mut runs = self.continuable(runs).await?;
            let count = runs.len();
            // Driven here until their loss is noticed.
            runs.retain(|run| !self.deps.live.contains(run.id));
            let taken = self.take_over(&runs, LeaseFilter::Unlocked(owner)).await?;
            is_complete &= taken == count;
            if is_last {
                break;
            }
        }
        Ok(is_complete)
    }

    /// Async runs and those of resumable runners. The take-over of others would end them, so they wait for their lease.
    async fn continuable(&self, runs: Vec<Run>) -> Result<Vec<Run>, StoreError> {
        let ids: Vec<_> = runs.iter().map(|run| run.id).collect();
        let async_runs = self.deps.store.leases().async_runs_of(&ids).await?;
        let (mut continuable, mut runners) = (Vec::new(), HashMap::new());
        for run in runs {
            let runner = (run.workspace.clone(), run.runner_id.clone());
            let is_resumable = if let Some(is_resumable) = runners.get(&runner) {
                *is_resumable
            } else {
                let is_resumable = self.deps.is_resumable(&run).await?;
                runners.insert(runner, is_resumable);
                is_resumable
            };
            if is_resumable || async_runs.contains(&run.id) {
                continuable.push(run);
            }
        }
        Ok(continuable)
    }
}

/// Sends the dead owners of each look. Returns the error that ended the session of the lock.
async fn look_until_lost(
    lock: &mut OwnerLock,
    first: Duration,
    dead: &watch::Sender<HashSet<LockedOwner>>,
) -> StoreError {
    let (mut watch, mut pause) = (LockWatch::default(), first);
    loop {
        let looked = async {
            lock.hold(pause).await?;
            lock.unlocked_owners().await
        };
        match looked.await {
            Ok(unlocked) => dead.send_replace(watch.dead_after(unlocked)),
            Err(error) => return error,
        };
        pause = BETWEEN_LOOKS;
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn owner_is_dead_after_two_looks_in_a_row() {
        let owner = LockedOwner::new(Uuid::now_v7());
        let (locked, unlocked) = (HashSet::new(), HashSet::from([owner]));
        let mut watch = LockWatch::default();
        for is_dead in [false, true, true] {
            let dead = watch.dead_after(unlocked.clone());
            assert_eq!(dead.contains(&owner), is_dead);
        }
        assert!(watch.dead_after(locked).is_empty());
        assert!(watch.dead_after(unlocked).is_empty());
    }
}
