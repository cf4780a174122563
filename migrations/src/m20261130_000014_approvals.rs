//! Approvals of tool calls, the questions that ask for them, and the approval of an audited call.

use sea_orm_migration::prelude::*;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

// `scope`: run, conversation, agent or workspace. `arguments`: rules by JSON pointer, or NULL with `request_sha256`, the
// hash of the one call that the approval covers. `max_uses` NULL: unlimited.
// `held_call`: tool and parameters of the call that the question is about, as canonical JSON.
const UP: [&str; 7] = [
    "CREATE TABLE approvals (
    id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, scope TEXT NOT NULL, agent_id TEXT,
    conversation_key TEXT, run_id TEXT, tool TEXT NOT NULL, arguments TEXT, request_sha256 TEXT, max_uses BIGINT,
    used BIGINT NOT NULL, last_used_at BIGINT, interaction_id TEXT, created_at BIGINT NOT NULL,
    created_by TEXT NOT NULL, expires_at BIGINT NOT NULL, revoked_at BIGINT, revoked_by TEXT)",
    "CREATE INDEX approvals_newest ON approvals (workspace_id, id)",
    // Expired approvals to delete.
    "CREATE INDEX approvals_by_expiry ON approvals (expires_at)",
    "ALTER TABLE interactions ADD COLUMN held_call TEXT",
    "ALTER TABLE interactions ADD COLUMN held_sha256 TEXT",
    "ALTER TABLE audit_entries ADD COLUMN approval_id TEXT",
    "ALTER TABLE tool_calls ADD COLUMN approval_id TEXT",
];
const DOWN: [&str; 5] = [
    "ALTER TABLE tool_calls DROP COLUMN approval_id",
    "ALTER TABLE audit_entries DROP COLUMN approval_id",
    "ALTER TABLE interactions DROP COLUMN held_sha256",
    "ALTER TABLE interactions DROP COLUMN held_call",
    "DROP TABLE approvals",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute(manager, &UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        execute(manager, &DOWN).await
    }
}

async fn execute(manager: &SchemaManager<'_>, statements: &[&str]) -> Result<(), DbErr> {
    for statement in statements {
        let connection = manager.get_connection();
        connection.execute_unprepared(statement).await?;
    }
    Ok(())
}
