//! Checkpoints of live runs.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// One row for each run: the newest checkpoint. `value` is JSON; `after_sequence` is the last ledger event that it includes.
const TABLE: &str = "CREATE TABLE run_checkpoints (
    run_id TEXT PRIMARY KEY, version BIGINT NOT NULL, value TEXT NOT NULL, after_sequence BIGINT NOT NULL,
    updated_at BIGINT NOT NULL)";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        connection.execute_unprepared(TABLE).await.map(drop)
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        let statement = "DROP TABLE run_checkpoints";
        connection.execute_unprepared(statement).await.map(drop)
    }
}
