//! The payloads of platforms, apart from the events that refer to them.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    // Whole or not at all, also where a process that is killed would leave half of it.
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let statement = "CREATE TABLE raw_payloads (
            workspace_id TEXT NOT NULL, event_id TEXT NOT NULL, payload TEXT NOT NULL,
            created_at BIGINT NOT NULL, PRIMARY KEY (workspace_id, event_id))";
        manager
            .get_connection()
            .execute_unprepared(statement)
            .await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .get_connection()
            .execute_unprepared("DROP TABLE raw_payloads")
            .await?;
        Ok(())
    }
}
