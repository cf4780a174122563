//! Pauses by operators, and acts on many runs.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const TABLES: [&str; 3] = [
    "CREATE TABLE pauses (
    scope TEXT NOT NULL PRIMARY KEY, workspace_id TEXT, agent_id TEXT, mode TEXT NOT NULL, reason TEXT,
    paused_by TEXT NOT NULL, paused_at BIGINT NOT NULL, runs_per_second BIGINT, released_at BIGINT NOT NULL,
    released_through BIGINT NOT NULL)",
    "CREATE TABLE jobs (
    id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, kind TEXT NOT NULL, api_key_id TEXT NOT NULL,
    reason TEXT, total BIGINT NOT NULL, done BIGINT NOT NULL, failed BIGINT NOT NULL, errors TEXT NOT NULL,
    created_at BIGINT NOT NULL, started_at BIGINT, finished_at BIGINT, cancel_requested_at BIGINT,
    lease_epoch BIGINT NOT NULL, lease_expires_at BIGINT NOT NULL)",
    "CREATE TABLE job_batches (
    job_id TEXT NOT NULL, number BIGINT NOT NULL, run_ids TEXT NOT NULL, PRIMARY KEY (job_id, number))",
];

const INDEXES: [&str; 2] = [
    "CREATE INDEX jobs_newest ON jobs (workspace_id, id)",
    // Unfinished jobs to claim, and old ones to delete.
    "CREATE INDEX jobs_by_end ON jobs (finished_at)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        for statement in TABLES.into_iter().chain(INDEXES) {
            connection.execute_unprepared(statement).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        for table in ["job_batches", "jobs", "pauses"] {
            let statement = format!("DROP TABLE {table}");
            connection.execute_unprepared(&statement).await?;
        }
        Ok(())
    }
}
