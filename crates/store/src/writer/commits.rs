//! Transactions over what has gathered, and what is done when one fails.

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

/// Tries of one item that lost against another writer.
const TRIES: u32 = 5;
/// The part of the longest silence after which a transaction takes up nothing more: on a slow database one thing may need all of
/// the rest, what comes behind is not to be given up with it, and leases are renewed in between.
pub(super) const ENOUGH: u32 = 6;
/// Items that nobody waits for and that are kept for when the database is back. More are lost.
const KEPT: usize = 1024;

/// The write connection, and what becomes of a batch on it.
pub(super) struct Commits {
    db: DatabaseConnection,
    /// The way into `SQLite` that most goes.
    inline: Option<Inline>,
    /// What the last transaction has read on that way, and at which version of the database.
    known: Mutex<(i64, Common)>,
    is_failing: Arc<AtomicBool>,
    outage: Outage,
    pub(super) patience: Patience,
    kept: Mutex<Vec<Box<dyn Item>>>,
    /// What is in the next transaction, whoever comes.
    late: Mutex<Vec<Box<dyn Item>>>,
    /// What waits for locks.
    pub(super) aside: Mutex<Aside>,
}

impl Commits {
    /// `is_failing` is set by a commit that failed for the database's sake.
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

    /// Leaves a database behind that a copy of its file is a copy of.
    pub(super) fn tidy_up(&self) {
        const STAYS: &str = "the log of the database stays beside it";
        match self.inline.as_ref().map(Inline::empty_log) {
            None | Some(Ok(true)) => {}
            Some(Ok(false)) => tracing::warn!("somebody reads the database: {STAYS}"),
            Some(Err(error)) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "{STAYS}");
            }
        }
    }

    pub(super) fn backend(&self) -> DbBackend {
        self.db.get_database_backend()
    }

    /// What nobody waits for and could not be written for the database's sake: it is tried again.
    pub(super) fn take_kept(&self) -> Vec<Box<dyn Item>> {
        std::mem::take(&mut *self.kept())
    }

    // Whole after any panic: it changes by one push at a time.
    fn kept(&self) -> MutexGuard<'_, Vec<Box<dyn Item>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has these in the next transaction.
    pub(super) fn put_off(&self, mut items: Vec<Box<dyn Item>>) {
        self.late().append(&mut items);
    }

    /// What was put off, or what the last transaction had no time for: it is in the next one.
    pub(super) fn take_late(&self) -> Vec<Box<dyn Item>> {
        std::mem::take(&mut *self.late())
    }

    /// Whether there is a next transaction, whoever comes.
    pub(super) fn is_late(&self) -> bool {
        !self.late().is_empty()
    }

    // Whole after any panic: it changes by one step at a time.
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

    /// One by one they would wait for the same absent database.
    pub(super) fn give_up(&self, batch: impl IntoIterator<Item = Box<dyn Item>>) {
        for item in batch {
            self.fail(item, StoreError::Unreachable);
        }
    }

    /// All in one transaction, and once more when it lost against another writer; one by one when that fails.
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
                    "a batch failed, its items are tried one by one"
                );
                // Of those that need a lock which is kept, each would wait as long again.
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
                    "a batch lost against another writer, it is tried again"
                );
            }
            outcome => return outcome,
        }
        // All of it was taken back: what it told first may be done together again.
        for (item, untold) in batch.iter_mut().zip(untold) {
            if untold {
                item.forget();
            }
        }
        self.try_once(batch, None).await
    }

    /// As long as there is time, one at least. The rest is in the next transaction: leases are renewed in between.
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

    /// Tries one item again while it loses against other writers, no longer than for one silence: leases wait. What somebody
    /// keeps a lock of is set aside.
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
                // The connection broke, perhaps on the way back: another one tells what stands.
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

    /// Commits what can be done for many at once, on a connection without a thread of its own. Gives what is
    /// left: the rest of the batch, or all of it when this did not go.
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
                tracing::debug!(error, "a batch goes the long way");
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

    /// Gives the places of what is left.
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
        // What a panic left open.
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

    // Whole after any panic: it is replaced as a whole.
    fn known(&self) -> MutexGuard<'_, (i64, Common)> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was read before, unless somebody else has written since: what goes inline changes no agents.
    fn take_known(&self, version: i64) -> Common {
        let (at, known) = std::mem::take(&mut *self.known());
        if at == version {
            known
        } else {
            Common::default()
        }
    }

    /// `lock_wait`: how long it waits for a lock, when not as long as others do.
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
            tracing::error!("a transaction had no end within {:?}", began.elapsed());
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

/// Whether the database was there to try.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Reached {
    Yes,
    No,
}
