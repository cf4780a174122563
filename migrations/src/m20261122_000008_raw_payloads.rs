//! Payloads of platforms, stored separately from their events.

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
        // A separate table: lists and lookups of events never read the payload.
        let statement = "CREATE TABLE raw_payloads (
            workspace_id TEXT NOT NULL, event_id TEXT NOT NULL, payload TEXT NOT NULL,
            created_at BIGINT NOT NULL, PRIMARY KEY (workspace_id, event_id))";
        run(manager, &[statement]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE raw_payloads"]).await
    }
}
