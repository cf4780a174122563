//! Platform actions: requests of runs to the program that operates their chat platform.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: [&str; 5] = [
    "CREATE TABLE platform_actions (
    id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, run_id TEXT NOT NULL, idempotency_key TEXT NOT NULL,
    sequence BIGINT, action TEXT NOT NULL, request TEXT NOT NULL, request_sha256 TEXT NOT NULL,
    status TEXT NOT NULL, interaction_id TEXT, timeout_ms BIGINT NOT NULL, expires_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL, claim_sha256 TEXT, claimed_by TEXT, claimed_at BIGINT, result TEXT,
    result_sha256 TEXT, finished_at BIGINT)",
    "CREATE UNIQUE INDEX platform_actions_run ON platform_actions (run_id, idempotency_key)",
    "CREATE UNIQUE INDEX platform_actions_question ON platform_actions (interaction_id)",
    "CREATE INDEX platform_actions_newest ON platform_actions (workspace_id, created_at, id)",
    // Programs look for open actions, which are few.
    "CREATE INDEX platform_actions_open ON platform_actions (workspace_id, created_at, id) WHERE status = 'open'",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        for statement in UP {
            connection.execute_unprepared(statement).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        let statement = "DROP TABLE platform_actions";
        connection.execute_unprepared(statement).await?;
        Ok(())
    }
}
