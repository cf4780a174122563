//! Retries from a result: the point of a retried run, and the tool calls that its record answers.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `retry_from`: sequence of the result in the ledger of `retry_of` after which the run begins. `after_sequence`: last
// ledger sequence of the run as the call began; NULL: recorded by an older gateway. `origin_run_id` and `origin_key` name
// a row of `tool_calls`, which has the result. `answered_at`: NULL while the record has not answered a call.
const UP: [&str; 3] = [
    "ALTER TABLE runs ADD COLUMN retry_from BIGINT",
    "ALTER TABLE tool_calls ADD COLUMN after_sequence BIGINT",
    "CREATE TABLE recorded_calls (
    run_id TEXT NOT NULL, n BIGINT NOT NULL, origin_run_id TEXT NOT NULL, origin_key TEXT NOT NULL,
    request_sha256 TEXT NOT NULL, answered_at BIGINT, answered_key TEXT,
    PRIMARY KEY (run_id, n))",
];
const DOWN: [&str; 3] = [
    "DROP TABLE recorded_calls",
    "ALTER TABLE tool_calls DROP COLUMN after_sequence",
    "ALTER TABLE runs DROP COLUMN retry_from",
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
