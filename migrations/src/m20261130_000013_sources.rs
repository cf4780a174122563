//! Sources: systems that post events. The API key of a source has its id.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `settings`: JSON without name and secret. `secret`, `previous_secret`: sealed.
const STATEMENTS: [&str; 2] = [
    "CREATE TABLE sources (
    id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, name TEXT NOT NULL, origin TEXT NOT NULL,
    enabled BOOLEAN NOT NULL, settings TEXT NOT NULL, secret TEXT NOT NULL, previous_secret TEXT,
    previous_until BIGINT, version BIGINT NOT NULL, created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
    updated_by TEXT NOT NULL)",
    "CREATE UNIQUE INDEX sources_by_name ON sources (workspace_id, name)",
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
        connection.execute_unprepared("DROP TABLE sources").await?;
        Ok(())
    }
}
