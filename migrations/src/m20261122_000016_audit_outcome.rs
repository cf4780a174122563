//! Outcome and duration of an audited call: an external call ends later than its permission check.

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
        // Nullable: an entry has no outcome during its call.
        run(
            manager,
            &[
                "ALTER TABLE audit_entries ADD COLUMN outcome TEXT",
                "ALTER TABLE audit_entries ADD COLUMN duration_ms BIGINT",
            ],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &[
                "ALTER TABLE audit_entries DROP COLUMN duration_ms",
                "ALTER TABLE audit_entries DROP COLUMN outcome",
            ],
        )
        .await
    }
}
