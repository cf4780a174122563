//! Export of administrative changes.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `export_at`: time from which a replica may export the row, in epoch milliseconds. NULL: it is exported.
const UP: [&str; 2] = [
    "ALTER TABLE changes ADD COLUMN export_at BIGINT DEFAULT 0",
    "CREATE INDEX changes_to_export ON changes (export_at) WHERE export_at IS NOT NULL",
];
const DOWN: [&str; 2] = [
    "DROP INDEX changes_to_export",
    "ALTER TABLE changes DROP COLUMN export_at",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for statement in UP {
            let connection = manager.get_connection();
            connection.execute_unprepared(statement).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for statement in DOWN {
            let connection = manager.get_connection();
            connection.execute_unprepared(statement).await?;
        }
        Ok(())
    }
}
