//! The principal of a cancel request and of the last change of an agent.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `KIND` or `KIND:ID`; NULL: recorded by an older gateway, or no such request.
const UP: [&str; 2] = [
    "ALTER TABLE runs ADD COLUMN cancelled_by TEXT",
    "ALTER TABLE agents ADD COLUMN updated_by TEXT",
];
const DOWN: [&str; 2] = [
    "ALTER TABLE runs DROP COLUMN cancelled_by",
    "ALTER TABLE agents DROP COLUMN updated_by",
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

async fn execute(manager: &SchemaManager<'_>, statements: [&str; 2]) -> Result<(), DbErr> {
    for statement in statements {
        manager
            .get_connection()
            .execute_unprepared(statement)
            .await?;
    }
    Ok(())
}
