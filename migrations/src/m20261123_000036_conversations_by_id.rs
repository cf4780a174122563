//! Index of conversations by their id only.

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
        // Filters of runs, events and questions name neither bot nor thread, and the unique index starts with the bot.
        let index =
            "CREATE INDEX conversations_by_id ON conversations (workspace_id, conversation_id)";
        run(manager, &[index]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP INDEX conversations_by_id"]).await
    }
}
