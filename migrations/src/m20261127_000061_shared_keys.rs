//! Idempotency keys of tool calls, shared by the runs of a conversation.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "ALTER TABLE tool_calls ADD COLUMN kept_until BIGINT",
    "CREATE INDEX tool_calls_kept ON tool_calls (kept_until) WHERE kept_until IS NOT NULL",
];

const DOWN: &[&str] = &[
    "DROP INDEX tool_calls_kept",
    "ALTER TABLE tool_calls DROP COLUMN kept_until",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Partial: only calls with a shared key have this time.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
