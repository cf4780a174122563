//! Maximum concurrent runs of an endpoint, and an index of live runs that counts them.

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
        // The index contains live runs only, so the cost of a count does not grow with the history.
        run(
            manager,
            &[
                "ALTER TABLE runner_endpoints ADD COLUMN max_runs BIGINT",
                "CREATE INDEX runs_live ON runs (workspace_id, endpoint_id, status) \
             WHERE status IN ('created', 'queued', 'claimed', 'running')",
            ],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &[
                "DROP INDEX runs_live",
                "ALTER TABLE runner_endpoints DROP COLUMN max_runs",
            ],
        )
        .await
    }
}
