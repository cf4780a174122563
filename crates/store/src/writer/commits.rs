//! Transactions over what has gathered, and what is done when one fails.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use sea_orm::{
    DatabaseConnection, DatabaseTransaction, SqliteTransactionMode, TransactionOptions,
    TransactionTrait,
};

use super::job::Item;
use crate::bulk;
use crate::common::Common;
use crate::error::StoreError;
use crate::{failpoint, meter};

/// Tries of one item that lost against another writer.
const TRIES: u32 = 5;
/// The longest that one transaction may take. A database that is cut off without a word says nothing
/// for longer: then nobody knows what became of it.
const PATIENCE: Duration = Duration::from_secs(15);

/// The write connection.
pub(super) struct Commits {
    db: DatabaseConnection,
    is_failing: Arc<AtomicBool>,
}

impl Commits {
    /// `is_failing` is set by a commit that failed for the database's sake.
    pub(super) fn new(db: DatabaseConnection, is_failing: Arc<AtomicBool>) -> Self {
        Self { db, is_failing }
    }

    /// All in one transaction; one by one when that fails.
    pub(super) async fn together(&self, mut batch: Vec<Box<dyn Item>>) {
        let refusals = if batch.len() == 1 {
            Ok(None)
        } else {
            self.try_once(&mut batch).await.map(Some)
        };
        match refusals {
            Ok(Some(refusals)) => {
                for (item, refusal) in batch.into_iter().zip(refusals) {
                    item.settle(refusal);
                }
            }
            Ok(None) => self.one_by_one(batch).await,
            Err(StoreError::Unreachable) => give_up(batch),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    items = batch.len(),
                    "a batch failed, its items are tried one by one"
                );
                self.one_by_one(batch).await;
            }
        }
    }

    async fn one_by_one(&self, batch: Vec<Box<dyn Item>>) {
        let mut batch = batch.into_iter();
        while let Some(item) = batch.next() {
            if self.alone(item).await == Reached::No {
                return give_up(batch);
            }
        }
    }

    pub(super) async fn alone(&self, item: Box<dyn Item>) -> Reached {
        let mut alone = vec![item];
        let mut outcome = self.try_once(&mut alone).await;
        let mut is_second_chance = true;
        for _ in 1..TRIES {
            let again = match &outcome {
                Ok(_) | Err(StoreError::Unreachable) => false,
                Err(error) if error.is_contention() => true,
                // The connection broke, perhaps on the way back: another one tells what stands.
                Err(error) => error.may_pass() && std::mem::take(&mut is_second_chance),
            };
            if !again {
                break;
            }
            outcome = self.try_once(&mut alone).await;
        }
        let reached = match &outcome {
            Err(StoreError::Unreachable) => Reached::No,
            _ => Reached::Yes,
        };
        let Some(item) = alone.pop() else {
            return reached;
        };
        match outcome {
            Ok(mut refusals) => item.settle(refusals.pop().flatten()),
            Err(error) => item.settle(Some(error)),
        }
        reached
    }

    async fn try_once(
        &self,
        batch: &mut [Box<dyn Item>],
    ) -> Result<Vec<Option<StoreError>>, StoreError> {
        let (items, began) = (batch.len(), Instant::now());
        let outcome = tokio::time::timeout(PATIENCE, transact(&self.db, batch)).await;
        let outcome = outcome.unwrap_or_else(|_| {
            tracing::error!("a transaction had no end within {PATIENCE:?}");
            Err(StoreError::Unreachable)
        });
        meter::transacted(items, began.elapsed(), outcome.is_ok());
        if let Err(error) = &outcome
            && error.may_pass()
            && !error.is_contention()
        {
            self.is_failing.store(true, Ordering::Release);
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

/// One by one they would wait for the same absent database.
fn give_up(batch: impl IntoIterator<Item = Box<dyn Item>>) {
    for item in batch {
        item.settle(Some(StoreError::Unreachable));
    }
}

/// One transaction over the batch. Gives each item's refusal; an error means that nothing was written.
async fn transact(
    db: &DatabaseConnection,
    batch: &mut [Box<dyn Item>],
) -> Result<Vec<Option<StoreError>>, StoreError> {
    let immediate = TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    };
    let tx = match db
        .begin_with_options(immediate)
        .await
        .map_err(StoreError::from)
    {
        Ok(tx) => tx,
        Err(error) if error.may_pass() && !error.is_contention() => {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "no transaction could begin"
            );
            return Err(StoreError::Unreachable);
        }
        Err(error) => return Err(error),
    };
    let mut refusals = Vec::with_capacity(batch.len());
    let mut common = Common::default();
    let together = first_of_each_run(batch);
    for (place, item) in batch.iter_mut().enumerate() {
        let refusal = if together.contains(&place) {
            None
        } else {
            apply(&tx, item.as_mut(), &mut common).await?
        };
        refusals.push(refusal);
    }
    // Last, as an ingest does: conversations first, their runs after.
    guarded(apply_together(&tx, batch, &together)).await?;
    failpoint::pass("writer.before_commit").await?;
    tx.commit().await?;
    failpoint::pass("writer.after_commit").await?;
    Ok(refusals)
}

/// Applies one item. Gives its refusal; an error takes the whole transaction back.
async fn apply(
    tx: &DatabaseTransaction,
    item: &mut dyn Item,
    common: &mut Common,
) -> Result<Option<StoreError>, StoreError> {
    let changes_agents = item.changes_agents();
    let refusal = if item.in_savepoint() {
        let inner = tx.begin().await?;
        match guarded(item.apply(&inner, common)).await {
            Ok(()) => {
                inner.commit().await?;
                None
            }
            Err(error) if error.is_contention() => return Err(error),
            Err(error) => {
                inner.rollback().await?;
                Some(error)
            }
        }
    } else {
        guarded(item.apply(tx, common)).await?;
        None
    };
    if changes_agents {
        *common = Common::default();
    }
    Ok(refusal)
}

/// The places of what can be done together. Two items of one kind for one run are not: the second one
/// must see what the first one did.
fn first_of_each_run(batch: &[Box<dyn Item>]) -> Vec<usize> {
    let mut seen = HashSet::new();
    let kinds = batch
        .iter()
        .map(|item| item.together().map(|work| work.key()));
    let first = kinds
        .enumerate()
        .filter(|(_, key)| key.is_some_and(|key| seen.insert(key)));
    first.map(|(place, _)| place).collect()
}

async fn apply_together(
    tx: &DatabaseTransaction,
    batch: &mut [Box<dyn Item>],
    places: &[usize],
) -> Result<(), StoreError> {
    let work: Vec<_> = places
        .iter()
        .filter_map(|place| batch[*place].together())
        .collect();
    let done = bulk::apply(tx, &work).await?;
    for (place, done) in places.iter().zip(done) {
        batch[*place].note_done(done);
    }
    Ok(())
}

/// A panic of one item is its own fault and nobody else's: the writer lives on.
async fn guarded(applying: impl Future<Output = Result<(), StoreError>>) -> Result<(), StoreError> {
    let applied = std::panic::AssertUnwindSafe(applying).catch_unwind().await;
    applied.unwrap_or(Err(StoreError::Panicked))
}
