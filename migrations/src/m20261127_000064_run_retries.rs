//! The run that a retry repeats. A run is retried at most once.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "ALTER TABLE runs ADD COLUMN retry_of TEXT",
    "CREATE UNIQUE INDEX runs_retries ON runs (retry_of) WHERE retry_of IS NOT NULL",
];

const DOWN: &[&str] = &[
    "DROP INDEX runs_retries",
    "ALTER TABLE runs DROP COLUMN retry_of",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // The unique index refuses a second retry, even of another replica.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
