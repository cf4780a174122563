//! Sealed tokens of actors, and the actor in audit entries.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `token`: sealed JSON. A row lives as long as its run. `actor`, `on_behalf_of`: type and id of the actor.
const UP: [&str; 2] = [
    "CREATE TABLE actor_tokens (run_id TEXT NOT NULL PRIMARY KEY, actor TEXT NOT NULL, token TEXT NOT NULL)",
    "ALTER TABLE audit_entries ADD COLUMN on_behalf_of TEXT",
];
const DOWN: [&str; 2] = [
    "ALTER TABLE audit_entries DROP COLUMN on_behalf_of",
    "DROP TABLE actor_tokens",
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
