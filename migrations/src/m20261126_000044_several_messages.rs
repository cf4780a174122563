//! Allows several messages per run: role and event no longer identify a transcript item.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DatabaseBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

/// `SQLite` cannot drop a constraint, so the table is rebuilt.
macro_rules! anew {
    ($constraint:literal) => {
        &[
            concat!(
                "CREATE TABLE transcript_items_new (
                    conversation_key TEXT NOT NULL, seq BIGINT NOT NULL, id TEXT NOT NULL UNIQUE,
                    run_id TEXT NOT NULL, event_id TEXT NOT NULL, role TEXT NOT NULL, item_type TEXT NOT NULL,
                    content TEXT, content_json TEXT, attachment_refs TEXT NOT NULL, created_at BIGINT NOT NULL,
                    terms_version BIGINT NOT NULL DEFAULT 0, author TEXT,
                    PRIMARY KEY (conversation_key, seq)",
                $constraint,
                ")"
            ),
            "INSERT INTO transcript_items_new (conversation_key, seq, id, run_id, event_id, role, item_type, content,
                content_json, attachment_refs, created_at, terms_version, author)
             SELECT conversation_key, seq, id, run_id, event_id, role, item_type, content,
                content_json, attachment_refs, created_at, terms_version, author FROM transcript_items",
            "DROP TABLE transcript_items",
            "ALTER TABLE transcript_items_new RENAME TO transcript_items",
            UNINDEXED,
        ]
    };
}

const UNINDEXED: &str =
    "CREATE INDEX transcript_unindexed ON transcript_items (conversation_key, seq)
    WHERE terms_version = 0";

/// Keeps the last message of a run with several.
const ONE_EACH: &str = "DELETE FROM transcript_items WHERE EXISTS (SELECT 1 FROM transcript_items later
    WHERE later.run_id = transcript_items.run_id AND later.role = transcript_items.role
    AND later.event_id = transcript_items.event_id
    AND later.conversation_key = transcript_items.conversation_key AND later.seq > transcript_items.seq)";

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        let statements: &[&str] = match manager.get_database_backend() {
            DatabaseBackend::Postgres => &[
                // The name that `PostgreSQL` gave to the unnamed constraint.
                "ALTER TABLE transcript_items DROP CONSTRAINT transcript_items_run_id_role_event_id_key",
            ],
            _ => anew!(""),
        };
        run(manager, statements).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // The older constraint allows one message only.
        run(manager, &[ONE_EACH]).await?;
        let statements: &[&str] = match manager.get_database_backend() {
            DatabaseBackend::Postgres => {
                &["ALTER TABLE transcript_items ADD UNIQUE (run_id, role, event_id)"]
            }
            _ => anew!(", UNIQUE (run_id, role, event_id)"),
        };
        run(manager, statements).await
    }
}
