//! Indexes for the deletion of budget sums: of past windows, and of pruned runs.

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
        // The sweep deletes by window, retention by run: neither is a prefix of the primary key.
        run(
            manager,
            &[
                "CREATE INDEX budget_usage_window ON budget_usage (window_start)",
                "CREATE INDEX budget_usage_subject ON budget_usage (subject)",
            ],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &[
                "DROP INDEX budget_usage_subject",
                "DROP INDEX budget_usage_window",
            ],
        )
        .await
    }
}
