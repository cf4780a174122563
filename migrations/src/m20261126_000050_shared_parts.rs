//! Text parts shared by many runs are stored once, by hash: schemas of granted tools, agents' specifications.
//!
//! Existing rows of runs keep their complete texts.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::{DbBackend, Statement};

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    // `is_kept`: a run's snapshot or specification uses the part, so it stays with the run.
    "CREATE TABLE shared_parts (
        sha256 TEXT PRIMARY KEY, text TEXT NOT NULL, is_kept BOOLEAN NOT NULL, created_at BIGINT NOT NULL)",
    "CREATE INDEX shared_parts_loose ON shared_parts (created_at) WHERE NOT is_kept",
    // Contexts that use a part, pruned with the ledger of their runs.
    "CREATE TABLE part_uses (
        run_id TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (run_id, sha256))",
    "CREATE INDEX part_uses_part ON part_uses (sha256)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Restores the complete texts, because an older gateway reads only those.
        let backend = manager.get_database_backend();
        let (texts, mark) = match backend {
            DbBackend::Sqlite => (
                [
                    ("run_snapshots", "snapshot"),
                    ("run_snapshots", "agent_spec"),
                ],
                "char(1)",
            ),
            _ => ([("runs", "snapshot"), ("runs", "agent_spec")], "chr(1)"),
        };
        let connection = manager.get_connection();
        let parts = Statement::from_string(backend, "SELECT sha256 FROM shared_parts");
        for part in connection.query_all_raw(parts).await? {
            // Hex digits only, so the text needs no escape in the statement.
            let sha256: String = part.try_get("", "sha256")?;
            for (table, column) in texts.into_iter().chain([("run_attempts", "context")]) {
                let named = format!("{mark} || '{sha256}' || {mark}");
                let update = format!(
                    "UPDATE {table} SET {column} = replace({column}, {named}, \
                     (SELECT text FROM shared_parts WHERE sha256 = '{sha256}')) \
                     WHERE {column} LIKE '%' || {named} || '%'"
                );
                connection.execute_unprepared(&update).await?;
            }
        }
        run(
            manager,
            &["DROP TABLE part_uses", "DROP TABLE shared_parts"],
        )
        .await
    }
}
