//! Span of a run's event, in the format of a `traceparent` header.

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
        // Nullable: runs of events without a trace header have none.
        run(manager, &["ALTER TABLE runs ADD COLUMN trace_parent TEXT"]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["ALTER TABLE runs DROP COLUMN trace_parent"]).await
    }
}
