//! Async runs: appended results in the runner's numbering until the run's owner has judged them, and the
//! runner's heartbeat lease.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "CREATE TABLE run_deferrals (
        run_id TEXT PRIMARY KEY, attempt BIGINT NOT NULL, accepted_through BIGINT NOT NULL,
        bytes BIGINT NOT NULL, lease_expires_at BIGINT NOT NULL)",
    "CREATE TABLE run_appends (
        run_id TEXT NOT NULL, first_sequence BIGINT NOT NULL, last_sequence BIGINT NOT NULL,
        payload TEXT NOT NULL, PRIMARY KEY (run_id, first_sequence))",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Results have their own rows: an append does not rewrite those of earlier calls.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &["DROP TABLE run_appends", "DROP TABLE run_deferrals"],
        )
        .await
    }
}
