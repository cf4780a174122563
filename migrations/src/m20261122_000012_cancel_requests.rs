//! Index of runs with a cancel request, so owners find them without scanning all live runs.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Always small: it contains a run from the cancel request to its end.
        let statement = "CREATE INDEX runs_asked_to_end ON runs (lease_owner) \
             WHERE status = 'running' AND cancel_requested_at IS NOT NULL";
        run(manager, &[statement]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let statement = "DROP INDEX runs_asked_to_end";
        run(manager, &[statement]).await
    }
}
