//! Events by time, newest first: of a workspace, and of a conversation.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // The event id breaks ties of equal times, so a page continues without gaps.
        run(
            manager,
            &[
                "CREATE INDEX events_newest ON events (workspace_id, received_at, event_id)",
                "CREATE INDEX events_talk ON events (conversation_key, received_at, event_id)",
            ],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &["DROP INDEX events_talk", "DROP INDEX events_newest"],
        )
        .await
    }
}
