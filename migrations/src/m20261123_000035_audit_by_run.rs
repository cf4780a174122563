//! Audit rows clustered by run, where `SQLite` had a table and two indexes: a row is written for each host call, and
//! read by its run. `PostgreSQL` keeps its table.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const COLUMNS: &str = "id, workspace_id, run_id, action, resource, operation, decision, rule, bytes, at, outcome, \
    duration_ms";

const TYPED: &str = "workspace_id TEXT NOT NULL, run_id TEXT NOT NULL, action TEXT NOT NULL, resource TEXT NOT NULL, \
    operation TEXT NOT NULL, decision TEXT NOT NULL, rule TEXT NOT NULL, bytes BIGINT NOT NULL, at BIGINT NOT NULL, \
    outcome TEXT, duration_ms BIGINT";

/// Rebuilds the table with `create`.
async fn make_anew(manager: &SchemaManager<'_>, create: &str) -> Result<(), DbErr> {
    let copy = format!("INSERT INTO audit_entries ({COLUMNS}) SELECT {COLUMNS} FROM older_entries");
    // `SQLite` cannot change a primary key in place.
    run(
        manager,
        &[
            "ALTER TABLE audit_entries RENAME TO older_entries",
            create,
            &copy,
            "DROP TABLE older_entries",
        ],
    )
    .await
}

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Sqlite {
            // On `PostgreSQL` replicas of an older version find rows by id only.
            return Ok(());
        }
        let create = format!(
            "CREATE TABLE audit_entries (id TEXT NOT NULL, {TYPED}, PRIMARY KEY (run_id, id)) WITHOUT ROWID"
        );
        make_anew(manager, &create).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() != DbBackend::Sqlite {
            return Ok(());
        }
        let create = format!("CREATE TABLE audit_entries (id TEXT PRIMARY KEY, {TYPED})");
        make_anew(manager, &create).await?;
        run(
            manager,
            &["CREATE INDEX audit_run ON audit_entries (run_id, id)"],
        )
        .await
    }
}
