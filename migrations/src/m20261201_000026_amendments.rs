//! Amendments: approvals that add a tool to the grant of their run.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `definition_sha256`: definition of the tool that the approval opens; NULL: it opens none. `sequence`: of the event in
// the ledger of its run; NULL: not written yet.
const UP: [&str; 3] = [
    "ALTER TABLE approvals ADD COLUMN definition_sha256 TEXT",
    "ALTER TABLE approvals ADD COLUMN sequence BIGINT",
    "CREATE INDEX approvals_amending ON approvals (run_id) WHERE definition_sha256 IS NOT NULL",
];
const DOWN: [&str; 3] = [
    "DROP INDEX approvals_amending",
    "ALTER TABLE approvals DROP COLUMN sequence",
    "ALTER TABLE approvals DROP COLUMN definition_sha256",
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
        let connection = manager.get_connection();
        connection.execute_unprepared(statement).await?;
    }
    Ok(())
}
