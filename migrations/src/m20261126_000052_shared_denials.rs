//! Number of denied calls aggregated in an audit entry.

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
        // Each existing entry is one call.
        let column = "ALTER TABLE audit_entries ADD COLUMN calls BIGINT NOT NULL DEFAULT 1";
        run(manager, &[column]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["ALTER TABLE audit_entries DROP COLUMN calls"]).await
    }
}
