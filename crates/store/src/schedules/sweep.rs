//! Deletion of old wakes. Occurrences of schedules are deleted with each new one.

use sea_orm::DatabaseTransaction;

use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::RetentionRepository;
use crate::sql::Sql;

/// Maximum wakes per transaction.
const SWEPT: u64 = 500;

const OLD: &str = "SELECT id FROM agent_wakes WHERE due_at < $1 ORDER BY due_at";

/// Deletes wakes from before a time, in epoch milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct SweepWakes {
    pub before: i64,
}

impl Mutation for SweepWakes {
    /// Number of deleted wakes.
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    fn lock(&self) -> Option<String> {
        Some("wake sweep".to_owned())
    }

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let old = format!("IN ({OLD} LIMIT {SWEPT})");
        let before = || vec![self.before.into()];
        // First: the wakes select their occurrences.
        let occurrences = format!("DELETE FROM schedule_occurrences WHERE owner_id {old}");
        tx.execute_sql(occurrences, before()).await?;
        let wakes = format!("DELETE FROM agent_wakes WHERE id {old} RETURNING id");
        Ok(tx.query_sql(wakes, before()).await?.len() as u64)
    }
}

impl RetentionRepository<'_> {
    /// Sweeps a batch; returns the number of deleted wakes.
    pub async fn sweep_wakes(self, sweep: SweepWakes) -> Result<u64, StoreError> {
        // Skips the writer when there is nothing to do.
        let sql = format!("{OLD} LIMIT 1");
        let old = self.db.readers.query_sql(sql, vec![sweep.before.into()]);
        if old.await?.is_empty() {
            return Ok(0);
        }
        self.db.write(sweep).await
    }
}
