//! Full-text index of transcripts: opaque terms made by the gateway, the same for both databases. A running
//! gateway indexes existing items.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

/// Stores no text and no word positions: readers check the item of a row.
const SQLITE: &[&str] = &["CREATE VIRTUAL TABLE transcript_terms USING fts5(
    terms, conversation_key UNINDEXED, seq UNINDEXED,
    content='', contentless_unindexed=1, detail=none, columnsize=0, tokenize='ascii')"];

const POSTGRES: &[&str] = &[
    "CREATE TABLE transcript_terms (
        conversation_key TEXT NOT NULL, seq BIGINT NOT NULL, terms TSVECTOR NOT NULL,
        PRIMARY KEY (conversation_key, seq))",
    "CREATE INDEX transcript_terms_found ON transcript_terms USING gin (terms)",
];

/// `terms_version`: version of the item's index terms; 0: not indexed. An older gateway next to this one writes 0
/// by default.
const UP: &[&str] = &[
    "ALTER TABLE transcript_items ADD COLUMN terms_version BIGINT NOT NULL DEFAULT 0",
    "CREATE INDEX transcript_unindexed ON transcript_items (conversation_key, seq)
        WHERE terms_version = 0",
];

const DOWN: &[&str] = &[
    "DROP INDEX transcript_unindexed",
    "ALTER TABLE transcript_items DROP COLUMN terms_version",
    "DROP TABLE transcript_terms",
    // FTS5 does not drop this table of a contentless index with stored columns.
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
        // Both indexes have the same table name, so queries differ only in their match expression.
        run(manager, index).await?;
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
