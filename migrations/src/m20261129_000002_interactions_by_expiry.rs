//! Open questions in the order of their expiry.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// Ends in the key of the order, so a page needs no sort. Questions that a live run has closed leave it.
const UP: &str = "CREATE INDEX interactions_expiry ON interactions (workspace_id, expires_at, id) \
    WHERE given_at IS NULL AND closed_at IS NULL";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        connection.execute_unprepared(UP).await.map(drop)
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        let statement = "DROP INDEX interactions_expiry";
        connection.execute_unprepared(statement).await.map(drop)
    }
}
