//! One transaction over many items.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use sea_orm::{
    ConnectionTrait, DatabaseConnection, DatabaseTransaction, DbBackend, SqliteTransactionMode,
    Statement, TransactionOptions, TransactionTrait,
};

use super::batch_plan::{BatchPlan, apply_batched, catch_panic};
use super::job::Item;
use super::lock_order::LockSet;
use crate::error::StoreError;
use crate::failpoint;
use crate::tx_cache::TxCache;

/// Result of an item in a committed transaction.
pub(super) enum Applied {
    Done,
    Refused(StoreError),
    /// The time ran out before this item.
    NotYet,
}

impl Applied {
    pub(super) fn is_deferred(&self) -> bool {
        matches!(self, Self::NotYet)
    }

    pub(super) fn refusal(self) -> Option<StoreError> {
        match self {
            Self::Done => None,
            Self::Refused(error) => Some(error),
            Self::NotYet => Some(StoreError::Unreachable),
        }
    }
}

/// Limits outage logs: one per outage, and at most one per minute. On a full disk, transactions that write
/// nothing succeed in between.
#[derive(Default)]
pub(super) struct Outage {
    is_reported: AtomicBool,
    reported_at: Mutex<Option<Instant>>,
}

const OUTAGE_LOG_INTERVAL: Duration = Duration::from_mins(1);

impl Outage {
    pub(super) fn report(&self, error: &StoreError) {
        if self.is_reported.load(Ordering::Relaxed) {
            return;
        }
        let mut reported_at = self
            .reported_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if reported_at.is_none_or(|at| at.elapsed() >= OUTAGE_LOG_INTERVAL) {
            *reported_at = Some(Instant::now());
            self.is_reported.store(true, Ordering::Relaxed);
            let error = error as &dyn std::error::Error;
            tracing::error!(error, "database failed, writes fail until it recovers");
        }
    }

    pub(super) fn end(&self) {
        self.is_reported.store(false, Ordering::Relaxed);
    }
}

/// Runs one transaction over the batch and returns each item's result; an error means that nothing was written.
/// After `enough` it starts no further item. `lock_wait`: overrides the session's lock timeout.
pub(super) async fn transact(
    db: &DatabaseConnection,
    batch: &mut [Box<dyn Item>],
    enough: Instant,
    lock_wait: Option<Duration>,
    outage: &Outage,
) -> Result<Vec<Applied>, StoreError> {
    let immediate = TransactionOptions {
        // `BEGIN` without it takes the write lock at the first write, and a lock upgrade after a read fails at once
        // with a busy error instead of waiting.
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    };
    let tx = match db
        .begin_with_options(immediate)
        .await
        .map_err(StoreError::from)
    {
        Ok(tx) => tx,
        Err(error) if error.is_transient() && !error.is_contention() => {
            // Not one statement was sent, so no item can have committed.
            outage.report(&error);
            return Err(StoreError::Unreachable);
        }
        Err(error) => return Err(error),
    };
    if let Some(wait) = lock_wait
        && tx.get_database_backend() == DbBackend::Postgres
    {
        // `LOCAL`: the pooled session keeps its own timeout after the commit.
        let set = format!("SET LOCAL lock_timeout = {}", wait.as_millis());
        tx.execute_unprepared(&set).await?;
    }
    // Advisory locks before row locks, as in every replica.
    take_locks(&tx, batch.iter().filter_map(|item| item.lock()).collect()).await?;
    let items = batch.iter().map(|item| &**item);
    LockSet::of(items).hold(&tx).await?;
    let applied = apply_all(&tx, batch, enough).await?;
    failpoint::pass("writer.before_commit").await?;
    tx.commit().await?;
    failpoint::pass("writer.after_commit").await?;
    Ok(applied)
}

/// Takes advisory locks in sorted order, before any row lock.
async fn take_locks(tx: &DatabaseTransaction, names: BTreeSet<String>) -> Result<(), StoreError> {
    if tx.get_database_backend() != DbBackend::Postgres {
        return Ok(());
    }
    for name in names {
        let sql = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
        let statement = Statement::from_sql_and_values(DbBackend::Postgres, sql, [name.into()]);
        tx.execute_raw(statement).await?;
    }
    Ok(())
}

/// Applies events first, because later items may read them, and batch operations before single items.
async fn apply_all(
    tx: &DatabaseTransaction,
    batch: &mut [Box<dyn Item>],
    enough: Instant,
) -> Result<Vec<Applied>, StoreError> {
    let mut applied: Vec<_> = batch.iter().map(|_| Applied::Done).collect();
    let mut tx_cache = TxCache::default();
    let batch_plan = BatchPlan::of(batch);
    // At least one item is applied, even on a slow database.
    let mut is_first = true;
    let has_time = |is_first: bool| is_first || Instant::now() < enough;
    // Each event locks its conversation: this order prevents deadlocks between replicas.
    let mut further_events = batch_plan.further_events;
    further_events.sort_by_cached_key(|index| batch[*index].batched()?.conversation());
    further_events.extend(batch_plan.alone);
    for (batched, alone) in [
        (batch_plan.events, further_events),
        (batch_plan.others, batch_plan.after),
    ] {
        if has_time(is_first) {
            catch_panic(apply_batched(tx, batch, &batched, &mut tx_cache)).await?;
            is_first &= batched.is_empty();
        } else {
            let late = batched.iter();
            late.for_each(|index| applied[*index] = Applied::NotYet);
        }
        for index in alone {
            applied[index] = if has_time(is_first) {
                apply(tx, batch[index].as_mut(), &mut tx_cache).await?
            } else {
                Applied::NotYet
            };
            is_first = false;
        }
    }
    Ok(applied)
}

/// Applies one item. An error rolls back the entire transaction.
async fn apply(
    tx: &DatabaseTransaction,
    item: &mut dyn Item,
    tx_cache: &mut TxCache,
) -> Result<Applied, StoreError> {
    let changes_agents = item.changes_agents();
    let applied = if item.in_savepoint() {
        let inner = tx.begin().await?;
        match catch_panic(item.apply(&inner, tx_cache)).await {
            Ok(()) => {
                inner.commit().await?;
                Applied::Done
            }
            // Contention is no fault of this item: the batch is retried.
            Err(error) if error.is_contention() => return Err(error),
            Err(error) => {
                inner.rollback().await?;
                Applied::Refused(error)
            }
        }
    } else {
        catch_panic(item.apply(tx, tx_cache)).await?;
        Applied::Done
    };
    if changes_agents {
        // Later items must not reuse reads that this item has made stale.
        *tx_cache = TxCache::default();
    }
    Ok(applied)
}
