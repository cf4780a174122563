//! Deletion of expired results of tool calls.

use sea_orm::{ColumnTrait, DatabaseTransaction, EntityTrait, QueryFilter, QuerySelect};

use crate::database_clock::read_now;
use crate::entity::tool_calls;
use crate::error::StoreError;
use crate::mutation::Mutation;
use crate::repositories::RetentionRepository;

struct SweepToolCalls;

/// Maximum rows per transaction.
const BATCH: u64 = 200;

impl Mutation for SweepToolCalls {
    type Output = u64;
    const CHANGES_AGENTS: bool = false;

    async fn apply(&self, tx: &DatabaseTransaction) -> Result<u64, StoreError> {
        let now = read_now(tx).await?;
        let old: Vec<(String, String)> = tool_calls::Entity::find()
            .select_only()
            .column(tool_calls::Column::RunId)
            .column(tool_calls::Column::Key)
            .filter(tool_calls::Column::KeptUntil.lt(now))
            .limit(BATCH)
            .into_tuple()
            .all(tx)
            .await?;
        let count = old.len() as u64;
        for row in old {
            tool_calls::Entity::delete_by_id(row).exec(tx).await?;
        }
        Ok(count)
    }
}

impl RetentionRepository<'_> {
    /// Deletes a batch of expired results of conversations; returns their number.
    pub async fn sweep_tool_calls(self) -> Result<u64, StoreError> {
        self.db.write(SweepToolCalls).await
    }
}
