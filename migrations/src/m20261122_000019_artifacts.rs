//! Artifacts: metadata of files with their bytes in a blob store. A row is created before its bytes and deleted
//! after them, so no bytes are orphaned.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "CREATE TABLE artifacts (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, origin TEXT NOT NULL, status TEXT NOT NULL,
        run_id TEXT, runner_id TEXT, conversation_key TEXT, event_id TEXT, sequence BIGINT,
        name TEXT NOT NULL, mime_type TEXT NOT NULL, size BIGINT NOT NULL, sha256 TEXT NOT NULL,
        place TEXT NOT NULL, created_at BIGINT NOT NULL, expires_at BIGINT NOT NULL)",
    // Covering index: each upload sums the usage of a workspace.
    "CREATE INDEX artifacts_usage ON artifacts (workspace_id, size)",
    "CREATE INDEX artifacts_expiry ON artifacts (expires_at)",
    "CREATE INDEX artifacts_run ON artifacts (run_id)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // `expires_at` is indexed for the sweep, which finds uploads and deletions by their expiry.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, &["DROP TABLE artifacts"]).await
    }
}
