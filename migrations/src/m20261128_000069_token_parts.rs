//! Cached and reasoning tokens of a call, within its prompt and completion tokens. 0 in rows of an older gateway.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "ALTER TABLE usage_calls ADD COLUMN cache_read_tokens BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE usage_calls ADD COLUMN cache_write_5m_tokens BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE usage_calls ADD COLUMN cache_write_1h_tokens BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE usage_calls ADD COLUMN reasoning_tokens BIGINT NOT NULL DEFAULT 0",
];

const DOWN: &[&str] = &[
    "ALTER TABLE usage_calls DROP COLUMN reasoning_tokens",
    "ALTER TABLE usage_calls DROP COLUMN cache_write_1h_tokens",
    "ALTER TABLE usage_calls DROP COLUMN cache_write_5m_tokens",
    "ALTER TABLE usage_calls DROP COLUMN cache_read_tokens",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
