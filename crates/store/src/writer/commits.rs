//! Transactions over gathered items, and the handling of failures.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sea_orm::{DatabaseConnection, DbBackend};

use super::aside::{Aside, LOOK};
use super::job::Item;
use super::patience::Patience;
use super::places::{Places, apply_together, guarded};
use super::transaction::{Applied, Outage, transact};
use crate::common::Common;
use crate::error::StoreError;
use crate::inline::Inline;
use crate::{failpoint, meter};

/// Maximum tries of one item under contention.
const TRIES: u32 = 5;
/// Divisor of the silence limit: after this share a transaction starts no further item. On a slow database one
/// item may need the rest of the time, and leases are renewed in between.
pub(super) const ENOUGH: u32 = 6;
/// Maximum items without a waiting caller kept through an outage. More are lost.
const KEPT: usize = 1024;

/// The write connection, and the handling of batches on it.
pub(super) struct Commits {
    db: DatabaseConnection,
    /// The direct `SQLite` connection, used by most items.
    inline: Option<Inline>,
    /// Reads of the last direct transaction, with their database version.
    known: Mutex<(i64, Common)>,
    is_failing: Arc<AtomicBool>,
    outage: Outage,
    pub(super) patience: Patience,
    kept: Mutex<Vec<Box<dyn Item>>>,
    /// Items of the next transaction.
    late: Mutex<Vec<Box<dyn Item>>>,
    /// Items that wait for locks.
    pub(super) aside: Mutex<Aside>,
}

impl Commits {
    /// A commit that fails on the database sets `is_failing`.
    pub(super) fn new(
        db: DatabaseConnection,
        inline: Option<Inline>,
        is_failing: Arc<AtomicBool>,
        patience: Patience,
    ) -> Self {
        Self {
            db,
            inline,
            known: Mutex::default(),
            is_failing,
            outage: Outage::default(),
            patience,
            kept: Mutex::default(),
            late: Mutex::default(),
            aside: Mutex::default(),
        }
    }

    /// Empties the write-ahead log, so the database file alone is a complete copy.
    pub(super) fn tidy_up(&self) {
        const STAYS: &str = "write-ahead log is not merged into the database file, copy both";
        match self.inline.as_ref().map(Inline::empty_log) {
            None | Some(Ok(true)) => {}
            Some(Ok(false)) => tracing::warn!("another process reads the database: {STAYS}"),
            Some(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "{STAYS}");
            }
        }
    }

    pub(super) fn backend(&self) -> DbBackend {
        self.db.get_database_backend()
    }

    /// Items without a waiting caller that failed on the database: retried with the next batch.
    pub(super) fn take_kept(&self) -> Vec<Box<dyn Item>> {
        std::mem::take(&mut *self.kept())
    }

    // Valid after a panic: each change is one push.
    fn kept(&self) -> MutexGuard<'_, Vec<Box<dyn Item>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Defers items to the next transaction.
    pub(super) fn put_off(&self, mut items: Vec<Box<dyn Item>>) {
        self.late().append(&mut items);
    }

    /// Takes the deferred items, and those without time in the last transaction.
    pub(super) fn take_late(&self) -> Vec<Box<dyn Item>> {
        std::mem::take(&mut *self.late())
    }

    /// True when deferred items exist.
    pub(super) fn is_late(&self) -> bool {
        !self.late().is_empty()
    }

    // Valid after a panic: each change is one step.
    fn late(&self) -> MutexGuard<'_, Vec<Box<dyn Item>>> {
        self.late.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, item: Box<dyn Item>, error: StoreError) {
        if !item.is_awaited() && error.may_pass() {
            let mut kept = self.kept();
            if kept.len() < KEPT {
                return kept.push(item);
            }
        }
        item.settle(Some(error));
    }

    /// Fails the items without a try: each would wait for the same unreachable database.
    pub(super) fn give_up(&self, batch: impl IntoIterator<Item = Box<dyn Item>>) {
        for item in batch {
            self.fail(item, StoreError::Unreachable);
        }
    }

    /// Commits all items in one transaction, retries once after contention, then falls back to one transaction
    /// per item.
    pub(super) async fn together(&self, mut batch: Vec<Box<dyn Item>>) -> Reached {
        if let Some(inline) = &self.inline
            && !batch.is_empty()
        {
            batch = self.commit_inline(inline, batch).await;
        }
        batch = batch
            .into_iter()
            .filter_map(|item| self.hold_back(item))
            .collect();
        if batch.is_empty() {
            return Reached::Yes;
        }
        let applied = if batch.len() == 1 {
            Ok(None)
        } else {
            self.try_all(&mut batch).await.map(Some)
        };
        match applied {
            Ok(Some(applied)) => {
                for (item, applied) in batch.into_iter().zip(applied) {
                    match applied {
                        Applied::Done => item.settle(None),
                        Applied::Refused(error) => item.settle(Some(error)),
                        Applied::NotYet => self.late().push(item),
                    }
                }
                Reached::Yes
            }
            Ok(None) => self.one_by_one(batch, None).await,
            Err(StoreError::Unreachable) => {
                self.give_up(batch);
                Reached::No
            }
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    items = batch.len(),
                    "batch failed, retrying its items one by one"
                );
                // Keep the wait short: every item that needs the same lock would wait as long again.
                let lock_wait = error.is_lock_wait().then_some(LOOK);
                self.one_by_one(batch, lock_wait).await
            }
        }
    }

    async fn try_all(&self, batch: &mut [Box<dyn Item>]) -> Result<Vec<Applied>, StoreError> {
        let untold: Vec<_> = batch.iter().map(|item| item.is_untold()).collect();
        match self.try_once(batch, None).await {
            Err(error) if error.is_contention() && !error.is_lock_wait() => {
                tracing::debug!(
                    error = &error as &dyn std::error::Error,
                    items = batch.len(),
                    "batch aborted by a conflict with another writer, retrying"
                );
            }
            outcome => return outcome,
        }
        // The rollback is certain: new results may use batch operations again.
        for (item, untold) in batch.iter_mut().zip(untold) {
            if untold {
                item.forget();
            }
        }
        self.try_once(batch, None).await
    }

    /// Commits items one by one until time is up, at least one. Defers the rest, so leases are renewed in
    /// between.
    async fn one_by_one(&self, batch: Vec<Box<dyn Item>>, lock_wait: Option<Duration>) -> Reached {
        let enough = Instant::now() + self.patience.silence / ENOUGH;
        let mut batch = batch.into_iter();
        while let Some(item) = batch.next() {
            let Some(item) = self.hold_back(item) else {
                continue;
            };
            if self.alone(item, lock_wait).await == Reached::No {
                self.give_up(batch);
                return Reached::No;
            }
            if Instant::now() >= enough {
                self.put_off(batch.collect());
                break;
            }
        }
        Reached::Yes
    }

    /// Retries one item under contention for at most one silence limit, because leases wait. After a lock
    /// timeout the item moves to the lock-wait queue.
    async fn alone(&self, item: Box<dyn Item>, lock_wait: Option<Duration>) -> Reached {
        let until = Instant::now() + self.patience.silence;
        let mut alone = vec![item];
        let mut outcome = self.try_once(&mut alone, lock_wait).await;
        let mut is_second_chance = true;
        for _ in 1..TRIES {
            let again = match &outcome {
                Ok(_) | Err(StoreError::Unreachable) => false,
                Err(error) if error.is_lock_wait() => false,
                Err(error) if error.is_contention() => Instant::now() < until,
                // The connection broke, perhaps after the commit: a new connection finds out.
                Err(error) => error.may_pass() && std::mem::take(&mut is_second_chance),
            };
            if !again {
                break;
            }
            outcome = self.try_once(&mut alone, lock_wait).await;
        }
        let reached = match &outcome {
            Err(StoreError::Unreachable) => Reached::No,
            _ => Reached::Yes,
        };
        let Some(item) = alone.pop() else {
            return reached;
        };
        match outcome {
            Ok(mut applied) => item.settle(applied.pop().and_then(Applied::refusal)),
            Err(error) if error.is_lock_wait() => self.set_aside(item, StoreError::Locked),
            Err(error) => self.fail(item, error),
        }
        reached
    }

    /// Commits batch operations on the direct connection. Returns the remaining items, or the whole batch after
    /// an error.
    async fn commit_inline(
        &self,
        inline: &Inline,
        mut batch: Vec<Box<dyn Item>>,
    ) -> Vec<Box<dyn Item>> {
        let began = Instant::now();
        let left = match self.transact_inline(inline, &mut batch).await {
            Ok(left) => left,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::debug!(
                    error,
                    "direct commit failed, retrying the batch through the pool"
                );
                return batch;
            }
        };
        let done = batch.len() - left.len();
        if done > 0 {
            meter::transacted(done, began.elapsed(), true);
        }
        let mut rest = Vec::with_capacity(left.len());
        for (place, item) in batch.into_iter().enumerate() {
            if left.contains(&place) {
                rest.push(item);
            } else {
                item.settle(None);
            }
        }
        rest
    }

    /// Returns the positions of the remaining items.
    async fn transact_inline(
        &self,
        inline: &Inline,
        batch: &mut [Box<dyn Item>],
    ) -> Result<HashSet<usize>, StoreError> {
        let places = Places::of(batch);
        let mut left: HashSet<_> = places.alone.into_iter().chain(places.after).collect();
        if left.len() == batch.len() {
            return Ok(left);
        }
        // A panic may have left a transaction open.
        inline.roll_back()?;
        inline.run("BEGIN IMMEDIATE")?;
        let mut common = Common::default();
        let applying = async {
            let version = inline.version()?;
            common = self.take_known(version);
            for places in [&places.events, &places.others] {
                let applying = guarded(apply_together(inline, batch, places, &mut common));
                left.extend(applying.await?);
            }
            failpoint::pass("writer.before_commit").await?;
            inline.commit()?;
            Ok(version)
        };
        match applying.await {
            Ok(version) => *self.known() = (version, common),
            Err(error) => {
                inline.roll_back()?;
                return Err(error);
            }
        }
        failpoint::pass("writer.after_commit").await?;
        Ok(left)
    }

    // Valid after a panic: only replaced as a whole.
    fn known(&self) -> MutexGuard<'_, (i64, Common)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached reads, unless another connection has written since. Direct work changes no agents.
    fn take_known(&self, version: i64) -> Common {
        let (at, known) = std::mem::take(&mut *self.known());
        if at == version {
            known
        } else {
            Common::default()
        }
    }

    /// `lock_wait`: overrides the session's lock timeout.
    pub(super) async fn try_once(
        &self,
        batch: &mut [Box<dyn Item>],
        lock_wait: Option<Duration>,
    ) -> Result<Vec<Applied>, StoreError> {
        let began = Instant::now();
        let enough = began + self.patience.silence / ENOUGH;
        let outcome = self
            .patience
            .wait(transact(&self.db, batch, enough, lock_wait, &self.outage))
            .await;
        let outcome = outcome.unwrap_or_else(|| {
            tracing::error!("transaction timed out after {:?}", began.elapsed());
            Err(StoreError::Unreachable)
        });
        let items = match &outcome {
            Ok(applied) => applied.iter().filter(|one| !one.is_late()).count(),
            Err(_) => batch.len(),
        };
        meter::transacted(items, began.elapsed(), outcome.is_ok());
        match &outcome {
            Err(error) if error.may_pass() && !error.is_contention() => {
                self.is_failing.store(true, Ordering::Release);
                self.outage.tell(error);
            }
            Err(_) => {}
            Ok(_) => self.outage.end(),
        }
        outcome
    }
}

/// True when the database was reachable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    Yes,
    No,
}
