//! Tool calls with an idempotency key: the intent before the call, the result after it.

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
        // The key is unique per run, so a retried call finds its first result.
        run(
            manager,
            &["CREATE TABLE tool_calls (
                run_id TEXT NOT NULL, key TEXT NOT NULL, call_id TEXT NOT NULL,
                request_sha256 TEXT NOT NULL, owner TEXT NOT NULL, expires_at BIGINT NOT NULL,
                result TEXT, at BIGINT NOT NULL,
                PRIMARY KEY (run_id, key))"],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE tool_calls"]).await
    }
}
