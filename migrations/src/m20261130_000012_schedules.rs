//! Schedules, their occurrences, and wakes of agents.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `next_due_at`: absent if it is disabled, paused or over. `occurrences`: number of the newest occurrence.
const SCHEDULES: &str = "CREATE TABLE schedules (
    id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, name TEXT NOT NULL, origin TEXT NOT NULL,
    enabled BOOLEAN NOT NULL, spec TEXT NOT NULL, agent_id TEXT, paused_at BIGINT, next_due_at BIGINT,
    occurrences BIGINT NOT NULL, version BIGINT NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL)";
// `owner_id`: a schedule or a wake. `agent_id`: of a wake only. `free_at`: the time from which a replica may claim it.
const OCCURRENCES: &str = "CREATE TABLE schedule_occurrences (
    owner_id TEXT NOT NULL, due_at BIGINT NOT NULL, kind TEXT NOT NULL, agent_id TEXT, number BIGINT NOT NULL,
    status TEXT NOT NULL, free_at BIGINT NOT NULL, tries BIGINT NOT NULL, lease_epoch BIGINT NOT NULL, run_id TEXT,
    reason TEXT, finished_at BIGINT, PRIMARY KEY (owner_id, due_at))";
// `scope`: the conversation of the run, or the run itself. `event`: the envelope.
const WAKES: &str = "CREATE TABLE agent_wakes (
    id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, agent_id TEXT NOT NULL, scope TEXT NOT NULL,
    wake_key TEXT NOT NULL, request_sha256 TEXT NOT NULL, event TEXT NOT NULL, due_at BIGINT NOT NULL,
    created_at BIGINT NOT NULL)";

const INDEXES: [&str; 7] = [
    "CREATE UNIQUE INDEX schedules_by_name ON schedules (workspace_id, name)",
    "CREATE INDEX schedules_due ON schedules (next_due_at)",
    "CREATE INDEX schedule_occurrences_free ON schedule_occurrences (status, free_at)",
    "CREATE INDEX schedule_occurrences_by_number ON schedule_occurrences (owner_id, number)",
    "CREATE INDEX schedule_occurrences_of_agent ON schedule_occurrences (agent_id, status)",
    "CREATE UNIQUE INDEX agent_wakes_by_key ON agent_wakes (agent_id, scope, wake_key)",
    "CREATE INDEX agent_wakes_by_time ON agent_wakes (due_at)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        for statement in [SCHEDULES, OCCURRENCES, WAKES].into_iter().chain(INDEXES) {
            connection.execute_unprepared(statement).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        for table in ["agent_wakes", "schedule_occurrences", "schedules"] {
            let statement = format!("DROP TABLE {table}");
            connection.execute_unprepared(&statement).await?;
        }
        Ok(())
    }
}
