//! Documents of knowledge bases, in chunks searchable by words and by vectors.
//!
//! A content is one indexed version of a document; its chunks have the ids `content * 32768 + n`. A document
//! points at its searchable content, so a replacement is atomic. `knowledge_garbage` lists unused contents.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    // `version` increases with every change to search results.
    "CREATE TABLE knowledge_bases (
        workspace_id TEXT NOT NULL, kb_id TEXT NOT NULL, version BIGINT NOT NULL,
        PRIMARY KEY (workspace_id, kb_id))",
    "CREATE TABLE knowledge_numbers (name TEXT PRIMARY KEY, last BIGINT NOT NULL)",
    "INSERT INTO knowledge_numbers (name, last) VALUES ('content', 0)",
    "CREATE TABLE knowledge_documents (
        workspace_id TEXT NOT NULL, kb_id TEXT NOT NULL, document_id TEXT NOT NULL,
        name TEXT NOT NULL, mime_type TEXT NOT NULL, metadata TEXT NOT NULL, sha256 TEXT NOT NULL,
        bytes BIGINT NOT NULL, characters BIGINT NOT NULL, chunks BIGINT NOT NULL, units BIGINT NOT NULL,
        content BIGINT NOT NULL, vector_model TEXT, chunk_chars BIGINT NOT NULL, chunk_overlap BIGINT NOT NULL,
        status TEXT NOT NULL, error TEXT, pending BIGINT NOT NULL, pending_by TEXT NOT NULL,
        pending_done BIGINT NOT NULL, pending_all BIGINT NOT NULL, pending_at BIGINT NOT NULL,
        created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL,
        PRIMARY KEY (workspace_id, kb_id, document_id))",
    "CREATE INDEX knowledge_documents_content ON knowledge_documents (content) WHERE content > 0",
    "CREATE INDEX knowledge_documents_pending ON knowledge_documents (pending_at) WHERE pending > 0",
    "CREATE TABLE knowledge_chunks (
        id BIGINT PRIMARY KEY, text TEXT NOT NULL, start_at BIGINT NOT NULL, end_at BIGINT NOT NULL,
        heading TEXT, units BIGINT NOT NULL)",
    "CREATE TABLE knowledge_metadata (
        content BIGINT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
        PRIMARY KEY (content, name, value))",
    "CREATE TABLE knowledge_garbage (content BIGINT PRIMARY KEY)",
];

/// Stores no text and no word positions: readers check the chunk of a row.
const SQLITE: &[&str] = &[
    "CREATE TABLE knowledge_vectors (id BIGINT PRIMARY KEY, vector BLOB NOT NULL)",
    "CREATE VIRTUAL TABLE knowledge_terms USING fts5(
        terms, content='', contentless_delete=1, detail=none, tokenize='ascii')",
];

const POSTGRES: &[&str] = &[
    "CREATE TABLE knowledge_vectors (id BIGINT PRIMARY KEY, vector BYTEA NOT NULL)",
    "CREATE TABLE knowledge_terms (rowid BIGINT PRIMARY KEY, terms TSVECTOR NOT NULL)",
    "CREATE INDEX knowledge_terms_found ON knowledge_terms USING gin (terms)",
    // Sorts in byte order, regardless of the server's collation.
    "ALTER TABLE knowledge_documents ALTER COLUMN document_id TYPE TEXT COLLATE \"C\"",
];

const TABLES: &[&str] = &[
    "knowledge_terms",
    "knowledge_vectors",
    "knowledge_garbage",
    "knowledge_metadata",
    "knowledge_chunks",
    "knowledge_documents",
    "knowledge_numbers",
    "knowledge_bases",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // The index tables differ in the types of their columns and in their full-text support.
        run(manager, UP).await?;
        let index = match manager.get_database_backend() {
            DbBackend::Postgres => POSTGRES,
            _ => SQLITE,
        };
        run(manager, index).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for table in TABLES {
            run(manager, &[&format!("DROP TABLE {table}")]).await?;
        }
        Ok(())
    }
}
