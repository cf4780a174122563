//! How many runs an endpoint may have at once, and an index of the runs that live, from which alone
//! they are counted.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    // Whole or not at all, also where a process that is killed would leave half of it.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for statement in [
            "ALTER TABLE runner_endpoints ADD COLUMN max_runs BIGINT",
            "CREATE INDEX runs_live ON runs (workspace_id, endpoint_id, status) \
             WHERE status IN ('created', 'queued', 'claimed', 'running')",
        ] {
            manager
                .get_connection()
                .execute_unprepared(statement)
                .await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for statement in [
            "DROP INDEX runs_live",
            "ALTER TABLE runner_endpoints DROP COLUMN max_runs",
        ] {
            manager
                .get_connection()
                .execute_unprepared(statement)
                .await?;
        }
        Ok(())
    }
}
