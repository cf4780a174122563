//! Runs that were asked to end, for their owners to find without reading all that run.

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
        // Small however much runs: a run is in it from the request to its end.
        let statement = "CREATE INDEX runs_asked_to_end ON runs (lease_owner) \
             WHERE status = 'running' AND cancel_requested_at IS NOT NULL";
        run(manager, &[statement]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let statement = "DROP INDEX runs_asked_to_end";
        run(manager, &[statement]).await
    }
}
