//! Run and agent that created each state key, for shares of a scope's keys.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "ALTER TABLE state_entries ADD COLUMN created_run_id TEXT",
    "ALTER TABLE state_entries ADD COLUMN agent_id TEXT",
    "UPDATE state_entries SET agent_id = (SELECT agent_id FROM runs WHERE runs.id = state_entries.run_id)",
];

const DOWN: &[&str] = &[
    "ALTER TABLE state_entries DROP COLUMN agent_id",
    "ALTER TABLE state_entries DROP COLUMN created_run_id",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Existing keys get the agent of their last writer, the only one recorded.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
