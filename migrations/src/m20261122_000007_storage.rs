//! Blob storage: a name points at a content, stored in chunks.
//!
//! `storage_garbage` lists unnamed contents: uploads in progress, and replaced contents that may still have
//! readers. They are deleted after their expiry.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "CREATE TABLE storage_blobs (
        workspace_id TEXT NOT NULL, area TEXT NOT NULL, owner TEXT NOT NULL, key TEXT NOT NULL,
        content_id TEXT NOT NULL, size BIGINT NOT NULL, sha256 TEXT NOT NULL,
        content_type TEXT NOT NULL, run_id TEXT NOT NULL, updated_at BIGINT NOT NULL,
        PRIMARY KEY (workspace_id, area, owner, key))",
    "CREATE TABLE storage_garbage (
        content_id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, area TEXT NOT NULL,
        owner TEXT NOT NULL, size BIGINT NOT NULL, expires_at BIGINT NOT NULL)",
    // Covering index: each upload sums the usage of an owner.
    "CREATE INDEX storage_blobs_usage ON storage_blobs (workspace_id, area, owner, size, key)",
    "CREATE INDEX storage_garbage_area ON storage_garbage (workspace_id, area, owner)",
    "CREATE INDEX storage_garbage_expiry ON storage_garbage (expires_at)",
];

const TABLES: &[&str] = &["storage_chunks", "storage_garbage", "storage_blobs"];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let is_postgres = manager.get_database_backend() == DbBackend::Postgres;
        run(manager, UP).await?;
        let bytes = if is_postgres { "BYTEA" } else { "BLOB" };
        let chunks = format!(
            "CREATE TABLE storage_chunks (content_id TEXT NOT NULL, n BIGINT NOT NULL,
                bytes {bytes} NOT NULL, PRIMARY KEY (content_id, n))"
        );
        run(manager, &[&chunks]).await?;
        // Keys sort in byte order, regardless of the server's collation.
        if is_postgres {
            let statement = "ALTER TABLE storage_blobs ALTER COLUMN key TYPE TEXT COLLATE \"C\"";
            run(manager, &[statement]).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        for table in TABLES {
            run(manager, &[&format!("DROP TABLE {table}")]).await?;
        }
        Ok(())
    }
}
