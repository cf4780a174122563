//! Links to the stream of one run, for browsers.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "CREATE TABLE stream_links (token_sha256 TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, \
     run_id TEXT NOT NULL, api_key_id TEXT NOT NULL, expires_at BIGINT NOT NULL, opened_at BIGINT)",
    "CREATE INDEX stream_links_expired ON stream_links (expires_at)",
];

const DOWN: &[&str] = &["DROP TABLE stream_links"];

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
