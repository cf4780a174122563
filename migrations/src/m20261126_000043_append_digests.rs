//! Digests of appended results, to refuse another result with an accepted number. Calls of an older gateway have
//! none.

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
        // Empty by default: calls of an older gateway have no digests.
        run(
            manager,
            &["ALTER TABLE run_appends ADD COLUMN digests TEXT NOT NULL DEFAULT ''"],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["ALTER TABLE run_appends DROP COLUMN digests"]).await
    }
}
