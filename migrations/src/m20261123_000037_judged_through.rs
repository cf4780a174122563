//! Number of the last appended result in the ledger: a new owner resumes after it.

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
        // A run in progress during this migration has an older owner, which does not record the number: -1.
        let column =
            "ALTER TABLE run_deferrals ADD COLUMN judged_through BIGINT NOT NULL DEFAULT -1";
        run(manager, &[column]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &["ALTER TABLE run_deferrals DROP COLUMN judged_through"],
        )
        .await
    }
}
