//! Generations of conversations, for agents with `conversation_idle_seconds`.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "CREATE TABLE conversation_generations (conversation_key TEXT NOT NULL, agent_id TEXT NOT NULL, \
     events_after BIGINT NOT NULL, number BIGINT NOT NULL, transcript_after BIGINT NOT NULL, \
     begun_at BIGINT NOT NULL, PRIMARY KEY (conversation_key, agent_id))",
];

const DOWN: &[&str] = &["DROP TABLE conversation_generations"];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
