//! How much of what a runner has appended stands in the ledger: whoever takes its run over goes on behind that. A
//! run that is under way at this change has an owner of before, which says nothing of it: -1.

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
