//! The principals of cancel requests and of the last changes of agents; the questions that allowed calls.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// Principals are `KIND` or `KIND:ID`; NULL: recorded by an older gateway, or no such request. `interaction_id` is the
// gateway's id of a question.
const UP: [&str; 3] = [
    "ALTER TABLE runs ADD COLUMN cancelled_by TEXT",
    "ALTER TABLE agents ADD COLUMN updated_by TEXT",
    "ALTER TABLE audit_entries ADD COLUMN interaction_id TEXT",
];
const DOWN: [&str; 3] = [
    "ALTER TABLE runs DROP COLUMN cancelled_by",
    "ALTER TABLE agents DROP COLUMN updated_by",
    "ALTER TABLE audit_entries DROP COLUMN interaction_id",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute(manager, DOWN).await
    }
}

async fn execute(manager: &SchemaManager<'_>, statements: [&str; 3]) -> Result<(), DbErr> {
    for statement in statements {
        manager
            .get_connection()
            .execute_unprepared(statement)
            .await?;
    }
    Ok(())
}
