//! Events of a workspace by time, newest first.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let statement =
            "CREATE INDEX events_newest ON events (workspace_id, received_at, event_id)";
        manager
            .get_connection()
            .execute_unprepared(statement)
            .await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .get_connection()
            .execute_unprepared("DROP INDEX events_newest")
            .await?;
        Ok(())
    }
}
