//! Tickets of tool calls that have no idempotency key, and effects of audited calls.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `attempt`: the newest attempt that made or repeated the call; NULL: the runner has chosen the key.
const UP: [&str; 3] = [
    "ALTER TABLE tool_calls ADD COLUMN attempt BIGINT",
    "ALTER TABLE audit_entries ADD COLUMN ticket TEXT",
    "ALTER TABLE audit_entries ADD COLUMN effect TEXT",
];
const DOWN: [&str; 3] = [
    "ALTER TABLE tool_calls DROP COLUMN attempt",
    "ALTER TABLE audit_entries DROP COLUMN ticket",
    "ALTER TABLE audit_entries DROP COLUMN effect",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute(manager, DOWN).await
    }
}

async fn execute(manager: &SchemaManager<'_>, statements: [&str; 3]) -> Result<(), DbErr> {
    for statement in statements {
        manager
            .get_connection()
            .execute_unprepared(statement)
            .await?;
    }
    Ok(())
}
