//! Budgets set by the API, and questions about budgets.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `spec`: the keys of a `[[budgets]]` entry, as JSON. `updated_by`: see the migration of principals. The columns of
// interactions belong to questions about a budget: the subject and window of its sum, the limit that refused the call,
// and the limit that the answer sets for the run.
const UP: [&str; 7] = [
    "CREATE TABLE budget_overrides (
    workspace_id TEXT NOT NULL, name TEXT NOT NULL, spec TEXT NOT NULL, updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL, PRIMARY KEY (workspace_id, name))",
    "ALTER TABLE interactions ADD COLUMN budget TEXT",
    "ALTER TABLE interactions ADD COLUMN budget_subject TEXT",
    "ALTER TABLE interactions ADD COLUMN budget_window BIGINT",
    "ALTER TABLE interactions ADD COLUMN budget_measure TEXT",
    "ALTER TABLE interactions ADD COLUMN budget_limit BIGINT",
    "ALTER TABLE interactions ADD COLUMN raised_to BIGINT",
];
const DOWN: [&str; 7] = [
    "DROP TABLE budget_overrides",
    "ALTER TABLE interactions DROP COLUMN budget",
    "ALTER TABLE interactions DROP COLUMN budget_subject",
    "ALTER TABLE interactions DROP COLUMN budget_window",
    "ALTER TABLE interactions DROP COLUMN budget_measure",
    "ALTER TABLE interactions DROP COLUMN budget_limit",
    "ALTER TABLE interactions DROP COLUMN raised_to",
];

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
