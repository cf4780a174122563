//! Transactions on the writer's direct connection.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::batch_plan::{BatchPlan, apply_batched, catch_panic};
use super::job::Item;
use super::lock_order::LockSet;
use crate::error::StoreError;
use crate::failpoint;
use crate::postgres_connector::PostgresConnector;
use crate::postgres_direct::PostgresDirect;
use crate::sql::Sql;
use crate::sqlite_direct::SqliteDirect;
use crate::tx_cache::TxCache;
use telemetry::metrics;

/// A connection that only the writer uses.
pub(crate) enum DirectConnection {
    Sqlite(SqliteDirect),
    Postgres(Box<PostgresSlot>),
}

/// A session, opened at its first use and after each loss.
pub(crate) struct PostgresSlot {
    connector: PostgresConnector,
    /// `None` during a transaction, so a transaction that times out drops its session.
    session: Mutex<Option<PostgresDirect>>,
    is_failure_reported: AtomicBool,
}

impl PostgresSlot {
    pub(crate) fn new(connector: PostgresConnector) -> Self {
        Self {
            connector,
            session: Mutex::default(),
            is_failure_reported: AtomicBool::default(),
        }
    }

    /// Takes a session with a new transaction. `None`: the server accepts no session.
    async fn begin(&self) -> Option<PostgresDirect> {
        let session = self.session().take();
        if let Some(session) = session
            && session.begin().await
        {
            return Some(session);
        }
        match self.connector.connect().await {
            Ok(session) => {
                self.is_failure_reported.store(false, Ordering::Relaxed);
                session.begin().await.then_some(session)
            }
            Err(error) => {
                if !self.is_failure_reported.swap(true, Ordering::Relaxed) {
                    tracing::warn!(
                        error = &*error,
                        "direct database connection failed, writing through the pool"
                    );
                }
                None
            }
        }
    }

    // Valid after a panic: each change replaces the full value.
    fn session(&self) -> MutexGuard<'_, Option<PostgresDirect>> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A direct connection with an open transaction.
trait OpenTransaction: Sql {
    /// Changes when another connection commits a change. `None`: unknown.
    fn version(&self) -> Result<Option<i64>, StoreError>;

    fn commit(&self) -> impl Future<Output = Result<(), StoreError>> + Send;
}

impl OpenTransaction for SqliteDirect {
    fn version(&self) -> Result<Option<i64>, StoreError> {
        Self::version(self).map(Some)
    }

    async fn commit(&self) -> Result<(), StoreError> {
        Self::commit(self)
    }
}

impl OpenTransaction for PostgresDirect {
    fn version(&self) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }

    async fn commit(&self) -> Result<(), StoreError> {
        Self::commit(self).await
    }
}

/// The direct connection, and the reads kept between its transactions.
pub(super) struct DirectCommits {
    connection: DirectConnection,
    /// Reads of the last direct transaction, with their database version, if it is known.
    cached_reads: Mutex<(Option<i64>, TxCache)>,
}

impl DirectCommits {
    pub(super) fn new(connection: DirectConnection) -> Self {
        Self {
            connection,
            cached_reads: Mutex::default(),
        }
    }

    /// Empties the write-ahead log of `SQLite`, so the database file is a complete copy by itself.
    pub(super) fn truncate_wal(&self) {
        const STAYS: &str = "write-ahead log is not merged into the database file, copy both";
        let DirectConnection::Sqlite(connection) = &self.connection else {
            return;
        };
        match connection.truncate_log() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("another process reads the database: {STAYS}"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "{STAYS}");
            }
        }
    }

    /// Commits the batch operations, finishes their items and removes them from the batch. Returns their number.
    pub(super) async fn commit(&self, batch: &mut Vec<Box<dyn Item>>) -> Result<usize, StoreError> {
        let began = Instant::now();
        let left = self.transact(batch).await?;
        let done = batch.len() - left.len();
        if done > 0 {
            metrics::committed(done, began.elapsed());
        }
        for (index, item) in std::mem::take(batch).into_iter().enumerate() {
            if left.contains(&index) {
                batch.push(item);
            } else {
                item.finish(None);
            }
        }
        Ok(done)
    }

    /// True when the pool must not retry the batch after this error. After any other, the batch was rolled back or
    /// its outcome is unknown, and the pool checks each item for an earlier commit.
    pub(super) fn is_final(&self, error: &StoreError) -> bool {
        let is_final = matches!(error, StoreError::Unreachable) || error.is_lock_wait();
        is_final && matches!(self.connection, DirectConnection::Postgres(_))
    }

    /// Returns the positions of the remaining items.
    async fn transact(&self, batch: &mut [Box<dyn Item>]) -> Result<HashSet<usize>, StoreError> {
        let batch_plan = BatchPlan::of(batch);
        if batch_plan.events.is_empty() && batch_plan.others.is_empty() {
            // An empty transaction would still take the write lock.
            return Ok((0..batch.len()).collect());
        }
        let applied = match &self.connection {
            DirectConnection::Sqlite(connection) => {
                // A panic may have left a transaction open.
                connection.roll_back()?;
                connection.run("BEGIN IMMEDIATE")?;
                let applied = self.apply(connection, batch, &batch_plan).await;
                if applied.is_err() {
                    connection.roll_back()?;
                }
                applied
            }
            DirectConnection::Postgres(slot) => {
                let Some(session) = slot.begin().await else {
                    return Ok((0..batch.len()).collect());
                };
                // Boxed, as are the steps of a batch: the transaction is as large as its largest step.
                let applied = Box::pin(self.apply(&session, batch, &batch_plan)).await;
                let is_usable = match &applied {
                    Ok(_) => true,
                    Err(error) => session.roll_back(error).await,
                };
                if is_usable {
                    *slot.session() = Some(session);
                }
                applied
            }
        };
        if applied.as_ref().is_err_and(StoreError::is_rolled_back) {
            // The pool may use batch operations for these items.
            for index in batch_plan.events.iter().chain(&batch_plan.others) {
                batch[*index].discard_result();
            }
        }
        let left = applied?;
        failpoint::pass("writer.after_commit").await?;
        Ok(left)
    }

    async fn apply(
        &self,
        tx: &impl OpenTransaction,
        batch: &mut [Box<dyn Item>],
        batch_plan: &BatchPlan,
    ) -> Result<HashSet<usize>, StoreError> {
        // Read inside the transaction, so no other connection can write between the check and the reads.
        let version = tx.version()?;
        let mut tx_cache = self.take_cached_reads(version);
        let (events, others) = (&batch_plan.events, &batch_plan.others);
        let items = events.iter().chain(others).map(|index| &*batch[*index]);
        LockSet::of(items).hold(tx).await?;
        for positions in [events, others] {
            catch_panic(apply_batched(tx, batch, positions, &mut tx_cache)).await?;
        }
        failpoint::pass("writer.before_commit").await?;
        tx.commit().await?;
        // Cached only after the commit: a rolled-back read may have seen rows that never existed.
        *self.cached_reads() = (version, tx_cache);
        let left = batch_plan.alone.iter();
        let left = left.chain(&batch_plan.further_events);
        Ok(left.chain(&batch_plan.after).copied().collect())
    }

    // Valid after a panic: each change replaces the full value.
    fn cached_reads(&self) -> MutexGuard<'_, (Option<i64>, TxCache)> {
        self.cached_reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached reads, outdated if another connection may have written since. Direct work changes no agents.
    fn take_cached_reads(&self, version: Option<i64>) -> TxCache {
        let (at, cached_reads) = std::mem::take(&mut *self.cached_reads());
        if version.is_some() && at == version {
            cached_reads
        } else {
            cached_reads.outdated()
        }
    }
}
