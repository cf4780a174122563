//! Workspaces, keys, the registry, events, runs with their ledger, transcripts, state and audit.
//!
//! JSON is text on both databases, times are epoch milliseconds, ids are text. Absent parts of a
//! conversation are `''`, because NULLs are never equal in a unique index.

use sea_orm_migration::prelude::*;
use sea_orm_migration::sea_orm::DbBackend;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "CREATE TABLE workspaces (id TEXT PRIMARY KEY, name TEXT NOT NULL, created_at BIGINT NOT NULL)",
    "INSERT INTO workspaces (id, name, created_at) VALUES ('default', 'default', 0)",
    "CREATE TABLE api_keys (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
        name TEXT NOT NULL, role TEXT NOT NULL, prefix TEXT NOT NULL UNIQUE, hash TEXT NOT NULL,
        created_at BIGINT NOT NULL, revoked_at BIGINT)",
    "CREATE TABLE signing_keys (
        kid TEXT PRIMARY KEY, purpose TEXT NOT NULL, secret TEXT NOT NULL,
        created_at BIGINT NOT NULL, sign_until BIGINT, verify_until BIGINT)",
    "CREATE TABLE runner_endpoints (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
        name TEXT NOT NULL, origin TEXT NOT NULL, enabled BOOLEAN NOT NULL, base_url TEXT NOT NULL,
        mode TEXT NOT NULL, delta_mode TEXT NOT NULL, secret TEXT NOT NULL, headers TEXT NOT NULL,
        manifests TEXT, health TEXT NOT NULL, health_reason TEXT, findings TEXT NOT NULL,
        discovered_at BIGINT, version BIGINT NOT NULL, created_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL, UNIQUE (workspace_id, name))",
    "CREATE TABLE runners (
        workspace_id TEXT NOT NULL REFERENCES workspaces (id), runner_id TEXT NOT NULL,
        endpoint_id TEXT NOT NULL, status TEXT NOT NULL, reason TEXT, manifest TEXT NOT NULL,
        manifest_sha256 TEXT NOT NULL, seen_at BIGINT NOT NULL,
        PRIMARY KEY (workspace_id, runner_id))",
    "CREATE TABLE agents (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
        name TEXT NOT NULL, origin TEXT NOT NULL, enabled BOOLEAN NOT NULL, priority BIGINT NOT NULL,
        scope_kind TEXT NOT NULL, scope_bot TEXT NOT NULL, scope_conversation TEXT NOT NULL,
        runner_id TEXT NOT NULL, spec TEXT NOT NULL, version BIGINT NOT NULL,
        created_at BIGINT NOT NULL, updated_at BIGINT NOT NULL, UNIQUE (workspace_id, name))",
    "CREATE INDEX agents_enabled ON agents (workspace_id, enabled)",
    "CREATE TABLE conversations (
        key TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
        bot_id TEXT NOT NULL, conversation_id TEXT NOT NULL, thread_id TEXT NOT NULL,
        last_event_seq BIGINT NOT NULL, last_transcript_seq BIGINT NOT NULL, version BIGINT NOT NULL,
        UNIQUE (workspace_id, bot_id, conversation_id, thread_id))",
    "CREATE TABLE events (
        workspace_id TEXT NOT NULL REFERENCES workspaces (id), event_id TEXT NOT NULL,
        dedupe_key TEXT NOT NULL, body_sha256 TEXT NOT NULL, answer TEXT NOT NULL,
        event_type TEXT NOT NULL, source TEXT NOT NULL, bot_id TEXT NOT NULL,
        conversation_key TEXT, event_seq BIGINT, envelope TEXT NOT NULL, steered_into TEXT,
        received_at BIGINT NOT NULL, PRIMARY KEY (workspace_id, event_id),
        UNIQUE (workspace_id, dedupe_key))",
    "CREATE INDEX events_conversation ON events (conversation_key, event_seq)",
    "CREATE TABLE runs (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL REFERENCES workspaces (id),
        event_id TEXT NOT NULL, agent_id TEXT NOT NULL, agent_version BIGINT NOT NULL,
        runner_id TEXT NOT NULL, endpoint_id TEXT NOT NULL, conversation_key TEXT,
        status TEXT NOT NULL, status_reason TEXT, attempt BIGINT NOT NULL, lease_owner TEXT,
        lease_epoch BIGINT NOT NULL, lease_expires_at BIGINT, last_sequence BIGINT NOT NULL,
        deadline_at BIGINT NOT NULL, cancel_requested_at BIGINT, agent_spec TEXT NOT NULL,
        snapshot TEXT NOT NULL, snapshot_sha256 TEXT NOT NULL, output TEXT, error TEXT, usage TEXT,
        metadata TEXT NOT NULL, created_at BIGINT NOT NULL, started_at BIGINT, finished_at BIGINT)",
    "CREATE INDEX runs_newest ON runs (workspace_id, created_at, id)",
    "CREATE INDEX runs_lease ON runs (status, lease_expires_at)",
    "CREATE INDEX runs_conversation ON runs (conversation_key, status, created_at)",
    "CREATE TABLE run_attempts (
        run_id TEXT NOT NULL, attempt BIGINT NOT NULL, intent_at BIGINT NOT NULL,
        context TEXT NOT NULL, outcome TEXT, http_status BIGINT, PRIMARY KEY (run_id, attempt))",
    "CREATE TABLE run_segments (
        run_id TEXT NOT NULL, first_sequence BIGINT NOT NULL, last_sequence BIGINT NOT NULL,
        payload TEXT NOT NULL, created_at BIGINT NOT NULL, PRIMARY KEY (run_id, first_sequence))",
    "CREATE TABLE run_rejections (
        run_id TEXT NOT NULL, n BIGINT NOT NULL, reason TEXT NOT NULL, runner_sequence TEXT,
        bytes BIGINT NOT NULL, excerpt TEXT NOT NULL, at BIGINT NOT NULL, PRIMARY KEY (run_id, n))",
    "CREATE TABLE transcript_items (
        conversation_key TEXT NOT NULL, seq BIGINT NOT NULL, id TEXT NOT NULL UNIQUE,
        run_id TEXT NOT NULL, event_id TEXT NOT NULL, role TEXT NOT NULL, item_type TEXT NOT NULL,
        content TEXT, content_json TEXT, attachment_refs TEXT NOT NULL, created_at BIGINT NOT NULL,
        PRIMARY KEY (conversation_key, seq), UNIQUE (run_id, role, event_id))",
    "CREATE TABLE state_entries (
        scope TEXT NOT NULL, scope_sha256 TEXT NOT NULL, key TEXT NOT NULL, workspace_id TEXT NOT NULL,
        value TEXT NOT NULL, version BIGINT NOT NULL, run_id TEXT NOT NULL, updated_at BIGINT NOT NULL,
        PRIMARY KEY (scope, scope_sha256, key))",
    "CREATE TABLE audit_entries (
        id TEXT PRIMARY KEY, workspace_id TEXT NOT NULL, run_id TEXT NOT NULL, action TEXT NOT NULL,
        resource TEXT NOT NULL, operation TEXT NOT NULL, decision TEXT NOT NULL, rule TEXT NOT NULL,
        bytes BIGINT NOT NULL, at BIGINT NOT NULL)",
    "CREATE INDEX audit_run ON audit_entries (run_id, id)",
];

const TABLES: &[&str] = &[
    "audit_entries",
    "state_entries",
    "transcript_items",
    "run_rejections",
    "run_segments",
    "run_attempts",
    "runs",
    "events",
    "conversations",
    "agents",
    "runners",
    "runner_endpoints",
    "signing_keys",
    "api_keys",
    "workspaces",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, UP).await?;
        // State keys sort in byte order, regardless of the server's collation.
        if manager.get_database_backend() == DbBackend::Postgres {
            let statement = "ALTER TABLE state_entries ALTER COLUMN key TYPE TEXT COLLATE \"C\"";
            run(manager, &[statement]).await?;
        }
        Ok(())
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // Children before their parents: foreign keys refuse the other order.
        for table in TABLES {
            run(manager, &[&format!("DROP TABLE {table}")]).await?;
        }
        Ok(())
    }
}
