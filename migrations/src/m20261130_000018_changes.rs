//! Administrative changes, one row for each changed object.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `workspace_id`: empty for changes of the installation. `document`: the object after the change, with marks instead of
// secrets; absent if it was deleted.
const STATEMENTS: [&str; 3] = [
    "CREATE TABLE changes (
    id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, kind TEXT NOT NULL, object_id TEXT NOT NULL,
    object_name TEXT NOT NULL, action TEXT NOT NULL, changed_by TEXT NOT NULL, request_id TEXT, patch TEXT NOT NULL,
    document TEXT, version BIGINT, at BIGINT NOT NULL)",
    "CREATE INDEX changes_by_workspace ON changes (workspace_id, id)",
    "CREATE INDEX changes_by_object ON changes (workspace_id, kind, object_id, id)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for statement in STATEMENTS {
            let connection = manager.get_connection();
            connection.execute_unprepared(statement).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let connection = manager.get_connection();
        connection.execute_unprepared("DROP TABLE changes").await?;
        Ok(())
    }
}
