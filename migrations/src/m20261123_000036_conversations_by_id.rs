//! Conversations by their ids alone: who asks for the runs, the events or the questions of one names neither its bot
//! nor its thread, and the unique index has the bot first.

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
        let index =
            "CREATE INDEX conversations_by_id ON conversations (workspace_id, conversation_id)";
        run(manager, &[index]).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP INDEX conversations_by_id"]).await
    }
}
