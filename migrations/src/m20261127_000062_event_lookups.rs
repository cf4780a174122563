//! One index each for lookups of an event by id and by deduplication key.
//!
//! On an empty table PostgreSQL plans such a lookup with any index that starts with the workspace, as all cost the
//! same. It keeps that plan as the table grows, and each lookup reads the entire workspace. So the index of newest
//! events has a condition that only lists use, and key indexes start with the key.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DatabaseBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "DROP INDEX events_newest",
    "CREATE INDEX events_newest ON events (workspace_id, received_at, event_id) WHERE received_at >= 0",
];
const POSTGRES_UP: &[&str] = &[
    "ALTER TABLE events DROP CONSTRAINT events_workspace_id_dedupe_key_key",
    "CREATE UNIQUE INDEX events_by_key ON events (dedupe_key, workspace_id)",
];

const DOWN: &[&str] = &[
    "DROP INDEX events_newest",
    "CREATE INDEX events_newest ON events (workspace_id, received_at, event_id)",
];
const POSTGRES_DOWN: &[&str] = &[
    "DROP INDEX events_by_key",
    "ALTER TABLE events ADD UNIQUE (workspace_id, dedupe_key)",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, UP).await?;
        if manager.get_database_backend() == DatabaseBackend::Postgres {
            // `SQLite` plans each statement anew and needs no other key index.
            run(manager, POSTGRES_UP).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await?;
        if manager.get_database_backend() == DatabaseBackend::Postgres {
            run(manager, POSTGRES_DOWN).await?;
        }
        Ok(())
    }
}
