//! Indexes for lists of runs by agent, and of live runs, in display order.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "CREATE INDEX runs_of_agent ON runs (workspace_id, agent_id, created_at, id)",
    "CREATE INDEX runs_live_newest ON runs (workspace_id, created_at, id) WHERE finished_at IS NULL",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Both end in the key of the display order, so a page needs no sort.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &["DROP INDEX runs_live_newest", "DROP INDEX runs_of_agent"],
        )
        .await
    }
}
