//! Transactions over gathered items, and the handling of failures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sea_orm::{DatabaseConnection, DbBackend};

use super::direct::{DirectCommits, DirectConnection};
use super::job::Item;
use super::lock_wait_queue::{BATCH_LOCK_TIMEOUT, LockWaitQueue};
use super::transaction::{Applied, Outage, transact};
use super::tx_timeout::TxTimeout;
use crate::error::StoreError;
use telemetry::metrics;

/// Maximum tries of one item under contention.
const TRIES: u32 = 5;
/// Divisor of the silence limit: after this share a transaction starts no further item. On a slow database one
/// item may need the rest of the time, and leases are renewed in between.
pub(super) const SILENCE_DIVISOR: u32 = 6;
/// Maximum items without a waiting caller stored through an outage. More are lost.
const MAX_RETAINED: usize = 1024;

/// The write connection, and the handling of batches on it.
pub(super) struct Commits {
    db: DatabaseConnection,
    /// Commits on the direct connection, used by most items.
    direct: Option<DirectCommits>,
    is_failing: Arc<AtomicBool>,
    outage: Outage,
    pub(super) tx_timeout: TxTimeout,
    retained: Mutex<Vec<Box<dyn Item>>>,
    /// Items of the next transaction.
    deferred: Mutex<Vec<Box<dyn Item>>>,
    /// Items that wait for locks.
    pub(super) lock_wait_queue: Mutex<LockWaitQueue>,
}

impl Commits {
    /// A commit that fails on the database sets `is_failing`.
    pub(super) fn new(
        db: DatabaseConnection,
        direct: Option<DirectConnection>,
        is_failing: Arc<AtomicBool>,
        tx_timeout: TxTimeout,
    ) -> Self {
        Self {
            db,
            direct: direct.map(DirectCommits::new),
            is_failing,
            outage: Outage::default(),
            tx_timeout,
            retained: Mutex::default(),
            deferred: Mutex::default(),
            lock_wait_queue: Mutex::default(),
        }
    }

    /// See [`DirectCommits::truncate_wal`].
    pub(super) fn truncate_wal(&self) {
        if let Some(direct) = &self.direct {
            direct.truncate_wal();
        }
    }

    pub(super) fn backend(&self) -> DbBackend {
        self.db.get_database_backend()
    }

    /// Items without a waiting caller that failed on the database: retried with the next batch.
    pub(super) fn take_retained(&self) -> Vec<Box<dyn Item>> {
        std::mem::take(&mut *self.retained())
    }

    // Valid after a panic: each change is one push.
    fn retained(&self) -> MutexGuard<'_, Vec<Box<dyn Item>>> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Defers items to the next transaction.
    pub(super) fn defer(&self, mut items: Vec<Box<dyn Item>>) {
        self.deferred().append(&mut items);
    }

    /// Takes the deferred items, and those without time in the last transaction.
    pub(super) fn take_deferred(&self) -> Vec<Box<dyn Item>> {
        std::mem::take(&mut *self.deferred())
    }

    /// True when deferred items exist.
    pub(super) fn is_deferred(&self) -> bool {
        !self.deferred().is_empty()
    }

    // Valid after a panic: each change is one step.
    fn deferred(&self) -> MutexGuard<'_, Vec<Box<dyn Item>>> {
        self.deferred.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, item: Box<dyn Item>, error: StoreError) {
        // Only items without a waiting caller: a caller retries itself, and a second try would write twice.
        if !item.is_awaited() && error.is_transient() {
            let mut retained = self.retained();
            if retained.len() < MAX_RETAINED {
                return retained.push(item);
            }
        }
        item.finish(Some(error));
    }

    /// Fails the items without a try: each would wait for the same unreachable database.
    pub(super) fn fail_all(&self, batch: impl IntoIterator<Item = Box<dyn Item>>) {
        for item in batch {
            self.fail(item, StoreError::Unreachable);
        }
    }

    /// Commits batch operations on the direct connection and the other items in one transaction of the pool. Retries
    /// once after contention, then falls back to one transaction per item.
    pub(super) async fn batched(&self, batch: Vec<Box<dyn Item>>) -> DatabaseReached {
        let batch = batch.into_iter();
        let mut batch: Vec<_> = batch
            .filter_map(|item| self.queue_if_blocked(item))
            .collect();
        let direct = self.try_direct(&mut batch).await;
        if batch.is_empty() {
            return DatabaseReached::Yes;
        }
        let applied = match direct {
            Err(error) => Err(error),
            // A single item has no batch to fall back from: the per-item loop retries it.
            Ok(()) if batch.len() == 1 => Ok(None),
            Ok(()) => self.try_all(&mut batch).await.map(Some),
        };
        match applied {
            Ok(Some(applied)) => {
                for (item, applied) in batch.into_iter().zip(applied) {
                    match applied {
                        Applied::Done => item.finish(None),
                        Applied::Refused(error) => item.finish(Some(error)),
                        Applied::NotYet => self.deferred().push(item),
                    }
                }
                DatabaseReached::Yes
            }
            Ok(None) => self.one_by_one(batch, None).await,
            Err(StoreError::Unreachable) => {
                self.fail_all(batch);
                DatabaseReached::No
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    items = batch.len(),
                    "batch failed, retrying its items one by one"
                );
                // Keep the wait short: every item that needs the same lock would wait as long again.
                let lock_wait = error.is_lock_wait().then_some(BATCH_LOCK_TIMEOUT);
                self.one_by_one(batch, lock_wait).await
            }
        }
    }

    /// Commits batch operations on the direct connection and removes them from the batch. An error means that the
    /// pool must not retry the batch as it is.
    async fn try_direct(&self, batch: &mut Vec<Box<dyn Item>>) -> Result<(), StoreError> {
        let Some(direct) = self.direct.as_ref().filter(|_| !batch.is_empty()) else {
            return Ok(());
        };
        let commit = Box::pin(direct.commit(batch));
        match self.tx_timeout.bound(commit).await {
            Ok(0) => {}
            Ok(_) => self.outage.end(),
            Err(error) if direct.is_final(&error) => {
                self.note_failure(&error);
                return Err(error);
            }
            Err(error) => {
                let is_expected = error.is_transient()
                    || matches!(error, StoreError::Refused | StoreError::Taken);
                let error = &error as &dyn std::error::Error;
                let message = "direct commit failed, retrying the batch through the pool";
                if is_expected {
                    tracing::debug!(error, "{message}");
                } else {
                    tracing::warn!(error, "{message}");
                }
            }
        }
        Ok(())
    }

    async fn try_all(&self, batch: &mut [Box<dyn Item>]) -> Result<Vec<Applied>, StoreError> {
        // Remembered before the try: results of earlier tries may be committed and must stay.
        let had_none: Vec<_> = batch.iter().map(|item| item.has_no_result()).collect();
        let outcome = self.try_once(batch, None).await;
        let Err(error) = &outcome else {
            return outcome;
        };
        if error.is_rolled_back() {
            // New results may use batch operations again.
            for (item, had_none) in batch.iter_mut().zip(had_none) {
                if had_none {
                    item.discard_result();
                }
            }
        }
        if !error.is_contention() || error.is_lock_wait() {
            return outcome;
        }
        tracing::debug!(
            error = error as &dyn std::error::Error,
            items = batch.len(),
            "batch aborted by a conflict with another writer, retrying"
        );
        self.try_once(batch, None).await
    }

    /// Commits items one by one until time is up, at least one. Defers the rest, so leases are renewed in
    /// between.
    async fn one_by_one(
        &self,
        batch: Vec<Box<dyn Item>>,
        lock_wait: Option<Duration>,
    ) -> DatabaseReached {
        // Lease renewals wait for this loop, so it stops long before the silence limit.
        let enough = Instant::now() + self.tx_timeout.silence / SILENCE_DIVISOR;
        let mut batch = batch.into_iter();
        while let Some(item) = batch.next() {
            let Some(item) = self.queue_if_blocked(item) else {
                continue;
            };
            if self.alone(item, lock_wait).await == DatabaseReached::No {
                // Each further item would wait for the same timeout.
                self.fail_all(batch);
                return DatabaseReached::No;
            }
            if Instant::now() >= enough {
                self.defer(batch.collect());
                break;
            }
        }
        DatabaseReached::Yes
    }

    /// Retries one item under contention for at most one silence limit, because leases wait. After a lock
    /// timeout the item moves to the lock-wait queue.
    async fn alone(&self, item: Box<dyn Item>, lock_wait: Option<Duration>) -> DatabaseReached {
        // Bounds the retries under contention, because lease renewals wait meanwhile.
        let until = Instant::now() + self.tx_timeout.silence;
        let mut alone = vec![item];
        let mut outcome = self.try_once(&mut alone, lock_wait).await;
        let mut is_second_chance = true;
        for _ in 1..TRIES {
            let again = match &outcome {
                Ok(_) | Err(StoreError::Unreachable) => false,
                // The lock-wait queue retries it, without blocking other items.
                Err(error) if error.is_lock_wait() => false,
                Err(error) if error.is_contention() => Instant::now() < until,
                // The connection broke, perhaps after the commit: a new connection finds out.
                Err(error) => error.is_transient() && std::mem::take(&mut is_second_chance),
            };
            if !again {
                break;
            }
            outcome = self.try_once(&mut alone, lock_wait).await;
        }
        let reached = match &outcome {
            Err(StoreError::Unreachable) => DatabaseReached::No,
            _ => DatabaseReached::Yes,
        };
        let Some(item) = alone.pop() else {
            return reached;
        };
        match outcome {
            Ok(mut applied) => item.finish(applied.pop().and_then(Applied::refusal)),
            Err(error) if error.is_lock_wait() => self.queue_for_lock(item, StoreError::Locked),
            Err(error) => self.fail(item, error),
        }
        reached
    }

    /// `lock_wait`: overrides the session's lock timeout.
    pub(super) async fn try_once(
        &self,
        batch: &mut [Box<dyn Item>],
        lock_wait: Option<Duration>,
    ) -> Result<Vec<Applied>, StoreError> {
        let began = Instant::now();
        let enough = began + self.tx_timeout.silence / SILENCE_DIVISOR;
        let transaction = transact(&self.db, batch, enough, lock_wait, &self.outage);
        let outcome = self.tx_timeout.bound(Box::pin(transaction)).await;
        match &outcome {
            Ok(applied) => {
                let items = applied.iter().filter(|one| !one.is_deferred()).count();
                metrics::committed(items, began.elapsed());
                self.outage.end();
            }
            Err(error) => self.note_failure(error),
        }
        outcome
    }

    fn note_failure(&self, error: &StoreError) {
        metrics::commit_failed();
        if error.is_transient() && !error.is_contention() {
            // The health probe then tests a small write: on a full disk, reads still succeed.
            self.is_failing.store(true, Ordering::Release);
            self.outage.report(error);
        }
    }
}

/// True when the database was reachable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DatabaseReached {
    Yes,
    No,
}
