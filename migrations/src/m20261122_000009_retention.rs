//! Marks runs with a ledger deleted by retention.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Partial: pruned runs leave the index, so the next batch is found without a scan.
        run(
            manager,
            &[
                "ALTER TABLE runs ADD COLUMN pruned_at BIGINT",
                "CREATE INDEX runs_to_prune ON runs (finished_at) WHERE pruned_at IS NULL",
            ],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &[
                "DROP INDEX runs_to_prune",
                "ALTER TABLE runs DROP COLUMN pruned_at",
            ],
        )
        .await
    }
}
