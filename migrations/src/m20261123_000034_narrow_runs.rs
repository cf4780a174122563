//! Cheaper updates of runs. Columns that a live run changes are in no index, and frozen texts are stored outside
//! the row.
//!
//! `PostgreSQL` stores large values out of line itself, so its columns stay, also for replicas of an older
//! version. `SQLite` would rewrite them on each change, so they get a table.
//!
//! A run is live while `finished_at` is null.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// Without a row id: one tree instead of a table and an index with the same content.
const FROZEN_APART: &[&str] = &[
    "CREATE TABLE run_snapshots (
        run_id TEXT PRIMARY KEY, agent_spec TEXT NOT NULL, snapshot TEXT NOT NULL) WITHOUT ROWID",
    "INSERT INTO run_snapshots (run_id, agent_spec, snapshot) SELECT id, agent_spec, snapshot FROM runs",
    "ALTER TABLE runs DROP COLUMN agent_spec",
    "ALTER TABLE runs DROP COLUMN snapshot",
];

const FROZEN_BACK: &[&str] = &[
    "ALTER TABLE runs ADD COLUMN agent_spec TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE runs ADD COLUMN snapshot TEXT NOT NULL DEFAULT ''",
    "UPDATE runs SET agent_spec = s.agent_spec, snapshot = s.snapshot FROM run_snapshots s \
     WHERE s.run_id = runs.id",
    "DROP TABLE run_snapshots",
];

const UP: &[&str] = &[
    "DROP INDEX runs_lease",
    "DROP INDEX runs_live",
    "CREATE INDEX runs_live ON runs (workspace_id, endpoint_id, finished_at) WHERE finished_at IS NULL",
    "DROP INDEX runs_conversation",
    "CREATE INDEX runs_conversation ON runs (conversation_key, created_at)",
    "CREATE INDEX runs_live_conversation ON runs (conversation_key) \
     WHERE finished_at IS NULL AND conversation_key IS NOT NULL",
    "DROP INDEX runs_asked_to_end",
    "CREATE INDEX runs_asked_to_end ON runs (cancel_requested_at) \
     WHERE cancel_requested_at IS NOT NULL AND finished_at IS NULL",
    "DROP INDEX runs_to_prune",
    "CREATE INDEX runs_to_prune ON runs (finished_at) WHERE pruned_at IS NULL AND finished_at IS NOT NULL",
    // No query uses this order: pages are in the order of `received_at`.
    "DROP INDEX events_conversation",
];

const DOWN: &[&str] = &[
    "CREATE INDEX events_conversation ON events (conversation_key, event_seq)",
    "DROP INDEX runs_to_prune",
    "CREATE INDEX runs_to_prune ON runs (finished_at) WHERE pruned_at IS NULL",
    "DROP INDEX runs_asked_to_end",
    "CREATE INDEX runs_asked_to_end ON runs (lease_owner) \
     WHERE status = 'running' AND cancel_requested_at IS NOT NULL",
    "DROP INDEX runs_live_conversation",
    "DROP INDEX runs_conversation",
    "CREATE INDEX runs_conversation ON runs (conversation_key, status, created_at)",
    "DROP INDEX runs_live",
    "CREATE INDEX runs_live ON runs (workspace_id, endpoint_id, status) \
     WHERE status IN ('created', 'queued', 'claimed', 'running')",
    "CREATE INDEX runs_lease ON runs (status, lease_expires_at)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        if manager.get_database_backend() == DbBackend::Sqlite {
            run(manager, FROZEN_APART).await?;
        }
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Indexes first, in the reverse order of `up`.
        run(manager, DOWN).await?;
        if manager.get_database_backend() == DbBackend::Sqlite {
            run(manager, FROZEN_BACK).await?;
        }
        Ok(())
    }
}
