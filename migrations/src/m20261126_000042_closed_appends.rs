//! Marks a run as closed for appended results: its owner judges the accepted ones and ends it.

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
        // Open by default: runs in progress accept results during the migration.
        let column =
            "ALTER TABLE run_deferrals ADD COLUMN is_closed BOOLEAN NOT NULL DEFAULT FALSE";
        run(manager, &[column]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &["ALTER TABLE run_deferrals DROP COLUMN is_closed"],
        )
        .await
    }
}
