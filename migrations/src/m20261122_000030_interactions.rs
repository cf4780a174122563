//! Questions of runs to users. The event of an answer marks its question as answered; its key contains the
//! question's id.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "CREATE TABLE interactions (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, run_id TEXT NOT NULL, sequence BIGINT NOT NULL,
        interaction_id TEXT NOT NULL, request TEXT NOT NULL, token_sha256 TEXT, expires_at BIGINT NOT NULL,
        asked_at BIGINT NOT NULL)",
    "CREATE UNIQUE INDEX interactions_token ON interactions (token_sha256)",
    "CREATE UNIQUE INDEX interactions_run ON interactions (run_id, interaction_id)",
    "CREATE INDEX interactions_workspace ON interactions (workspace_id, id)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // The token is stored as a hash only: a reader of the database cannot answer a question.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE interactions"]).await
    }
}
