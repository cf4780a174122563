//! Budgets set by the API.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `spec`: the keys of a `[[budgets]]` entry, as JSON. `updated_by`: see the migration of principals.
const UP: [&str; 1] = ["CREATE TABLE budget_overrides (
    workspace_id TEXT NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL, PRIMARY KEY (workspace_id, name))"];
const DOWN: [&str; 1] = ["DROP TABLE budget_overrides"];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute(manager, &UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute(manager, &DOWN).await
    }
}

async fn execute(manager: &SchemaManager<'_>, statements: &[&str]) -> Result<(), DbErr> {
    for statement in statements {
        manager
            .get_connection()
            .execute_unprepared(statement)
            .await?;
    }
    Ok(())
}
