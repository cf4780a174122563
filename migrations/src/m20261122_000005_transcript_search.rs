//! The full-text index of transcripts: opaque terms, made by the gateway, the same for both
//! databases. Items that stand there already are entered by a gateway that runs.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

/// Keeps no text and no places of words: who finds a row looks at its item.
const SQLITE: &[&str] = &["CREATE VIRTUAL TABLE transcript_terms USING fts5(
    terms, conversation_key UNINDEXED, seq UNINDEXED,
    content='', contentless_unindexed=1, detail=none, columnsize=0, tokenize='ascii')"];

const POSTGRES: &[&str] = &[
    "CREATE TABLE transcript_terms (
        conversation_key TEXT NOT NULL, seq BIGINT NOT NULL, terms TSVECTOR NOT NULL,
        PRIMARY KEY (conversation_key, seq))",
    "CREATE INDEX transcript_terms_found ON transcript_terms USING gin (terms)",
];

/// `terms_version`: which terms the index has of an item, 0 for none. An older gateway beside this
/// one writes 0 without knowing it.
const UP: &[&str] = &[
    "ALTER TABLE transcript_items ADD COLUMN terms_version BIGINT NOT NULL DEFAULT 0",
    "CREATE INDEX transcript_unindexed ON transcript_items (conversation_key, seq)
        WHERE terms_version = 0",
];

const DOWN: &[&str] = &[
    "DROP INDEX transcript_unindexed",
    "ALTER TABLE transcript_items DROP COLUMN terms_version",
    "DROP TABLE transcript_terms",
    // FTS5 leaves it behind when it keeps columns and no text.
    "DROP TABLE IF EXISTS transcript_terms_content",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let index = match manager.get_database_backend() {
            DbBackend::Postgres => POSTGRES,
            _ => SQLITE,
        };
        run(manager, index).await?;
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
