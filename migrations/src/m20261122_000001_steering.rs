//! Events that an active run absorbs, until it pulls them.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let statement = "CREATE TABLE steering_items (
            run_id TEXT NOT NULL, n BIGINT NOT NULL, event_id TEXT NOT NULL, status TEXT NOT NULL,
            at BIGINT NOT NULL, PRIMARY KEY (run_id, n), UNIQUE (run_id, event_id))";
        manager
            .get_connection()
            .execute_unprepared(statement)
            .await?;
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        manager
            .get_connection()
            .execute_unprepared("DROP TABLE steering_items")
            .await?;
        Ok(())
    }
}
