//! Marks the API keys of sign-ins, which retention deletes after their end.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: [&str; 2] = [
    "ALTER TABLE api_keys ADD COLUMN is_session BOOLEAN NOT NULL DEFAULT FALSE",
    "CREATE INDEX api_keys_sessions ON api_keys (expires_at) WHERE is_session",
];
const DOWN: [&str; 2] = [
    "DROP INDEX api_keys_sessions",
    "ALTER TABLE api_keys DROP COLUMN is_session",
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
