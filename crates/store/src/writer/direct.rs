//! Transactions on the direct `SQLite` connection.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::batch_plan::{BatchPlan, apply_batched, catch_panic};
use super::job::Item;
use crate::error::StoreError;
use crate::failpoint;
use crate::sqlite_direct::SqliteDirect;
use crate::tx_cache::TxCache;
use telemetry::metrics;

/// The direct connection, and the reads kept between its transactions.
pub(super) struct DirectCommits {
    connection: SqliteDirect,
    /// Reads of the last direct transaction, with their database version.
    cached_reads: Mutex<(i64, TxCache)>,
}

impl DirectCommits {
    pub(super) fn new(connection: SqliteDirect) -> Self {
        Self {
            connection,
            cached_reads: Mutex::default(),
        }
    }

    /// Empties the write-ahead log, so the database file is a complete copy by itself.
    pub(super) fn truncate_wal(&self) {
        const STAYS: &str = "write-ahead log is not merged into the database file, copy both";
        match self.connection.truncate_log() {
            Ok(true) => {}
            Ok(false) => tracing::warn!("another process reads the database: {STAYS}"),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "{STAYS}");
            }
        }
    }

    /// Commits batch operations on the direct connection. Returns the remaining items, or the full batch after an
    /// error.
    pub(super) async fn commit(&self, mut batch: Vec<Box<dyn Item>>) -> Vec<Box<dyn Item>> {
        let began = Instant::now();
        let left = match self.transact(&mut batch).await {
            Ok(left) => left,
            // Rolled back, or with an unknown outcome: the pool's retry checks each item for an earlier commit.
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
            metrics::committed(done, began.elapsed());
        }
        let mut rest = Vec::with_capacity(left.len());
        for (index, item) in batch.into_iter().enumerate() {
            if left.contains(&index) {
                rest.push(item);
            } else {
                item.finish(None);
            }
        }
        rest
    }

    /// Returns the positions of the remaining items.
    async fn transact(&self, batch: &mut [Box<dyn Item>]) -> Result<HashSet<usize>, StoreError> {
        let batch_plan = BatchPlan::of(batch);
        let mut left: HashSet<_> = batch_plan
            .alone
            .into_iter()
            .chain(batch_plan.after)
            .collect();
        if left.len() == batch.len() {
            // Nothing to do here: an empty transaction would still take the write lock.
            return Ok(left);
        }
        // A panic may have left a transaction open.
        self.connection.roll_back()?;
        self.connection.run("BEGIN IMMEDIATE")?;
        let mut tx_cache = TxCache::default();
        let applying = async {
            let version = self.connection.version()?;
            // Read inside the transaction, so no other connection can write between the check and the reads.
            tx_cache = self.take_cached_reads(version);
            for batch_plan in [&batch_plan.events, &batch_plan.others] {
                let applying = catch_panic(apply_batched(
                    &self.connection,
                    batch,
                    batch_plan,
                    &mut tx_cache,
                ));
                left.extend(applying.await?);
            }
            failpoint::pass("writer.before_commit").await?;
            self.connection.commit()?;
            Ok(version)
        };
        match applying.await {
            // Cached only after the commit: a rolled-back read may have seen rows that never existed.
            Ok(version) => *self.cached_reads() = (version, tx_cache),
            Err(error) => {
                self.connection.roll_back()?;
                return Err(error);
            }
        }
        failpoint::pass("writer.after_commit").await?;
        Ok(left)
    }

    // Valid after a panic: each change replaces the full value.
    fn cached_reads(&self) -> MutexGuard<'_, (i64, TxCache)> {
        self.cached_reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The cached reads, unless another connection has written since. Direct work changes no agents.
    fn take_cached_reads(&self, version: i64) -> TxCache {
        let (at, cached_reads) = std::mem::take(&mut *self.cached_reads());
        if at == version {
            cached_reads
        } else {
            TxCache::default()
        }
    }
}
