//! Agent of each artifact and blob, for quota shares per run and agent.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "ALTER TABLE artifacts ADD COLUMN agent_id TEXT",
    "UPDATE artifacts SET agent_id = (SELECT agent_id FROM runs WHERE runs.id = artifacts.run_id)
        WHERE run_id IS NOT NULL",
    // Covering index: each upload sums the share of an agent.
    "CREATE INDEX artifacts_agent_usage ON artifacts (workspace_id, agent_id, size)",
    "ALTER TABLE storage_blobs ADD COLUMN agent_id TEXT",
    "UPDATE storage_blobs SET agent_id = (SELECT agent_id FROM runs WHERE runs.id = storage_blobs.run_id)",
    "ALTER TABLE storage_garbage ADD COLUMN run_id TEXT",
    "ALTER TABLE storage_garbage ADD COLUMN agent_id TEXT",
];

const DOWN: &[&str] = &[
    "DROP INDEX artifacts_agent_usage",
    "ALTER TABLE artifacts DROP COLUMN agent_id",
    "ALTER TABLE storage_blobs DROP COLUMN agent_id",
    "ALTER TABLE storage_garbage DROP COLUMN run_id",
    "ALTER TABLE storage_garbage DROP COLUMN agent_id",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Existing rows get the agent of their run, or their bytes would count for no share.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
