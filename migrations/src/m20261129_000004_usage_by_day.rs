//! Sums of calls by day, agent and resource.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// One row for each gateway process: replicas add to rows of their own, so they do not wait for each other's commits.
const TABLE: &str = "CREATE TABLE usage_days (
    workspace_id TEXT NOT NULL, day BIGINT NOT NULL, agent_id TEXT NOT NULL, kind TEXT NOT NULL,
    resource TEXT NOT NULL, gateway TEXT NOT NULL, runs BIGINT NOT NULL, resource_runs BIGINT NOT NULL,
    calls BIGINT NOT NULL, prompt_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL,
    cache_read_tokens BIGINT NOT NULL, cache_write_5m_tokens BIGINT NOT NULL,
    cache_write_1h_tokens BIGINT NOT NULL, reasoning_tokens BIGINT NOT NULL, cost_micros BIGINT NOT NULL,
    wall_ms BIGINT NOT NULL,
    PRIMARY KEY (workspace_id, day, agent_id, kind, resource, gateway))";

// Ids of calls begin with their time, so the first call of a run has its lowest id.
const FILL: &str = "INSERT INTO usage_days
    SELECT u.workspace_id, u.at / 86400000, r.agent_id, u.kind, u.resource, '',
        SUM(CASE WHEN u.id = (SELECT MIN(f.id) FROM usage_calls f WHERE f.run_id = u.run_id) THEN 1 ELSE 0 END),
        COUNT(DISTINCT u.run_id), COUNT(*), SUM(u.prompt_tokens), SUM(u.completion_tokens),
        SUM(u.cache_read_tokens), SUM(u.cache_write_5m_tokens), SUM(u.cache_write_1h_tokens),
        SUM(u.reasoning_tokens), SUM(u.cost_micros), SUM(u.wall_ms)
    FROM usage_calls u JOIN runs r ON r.id = u.run_id
    GROUP BY u.workspace_id, u.at / 86400000, r.agent_id, u.kind, u.resource";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        connection.execute_unprepared(TABLE).await?;
        connection.execute_unprepared(FILL).await.map(drop)
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        let statement = "DROP TABLE usage_days";
        connection.execute_unprepared(statement).await.map(drop)
    }
}
