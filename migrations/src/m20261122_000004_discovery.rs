//! Time of each endpoint's next check, and its health history.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "ALTER TABLE runner_endpoints ADD COLUMN next_check_at BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE runner_endpoints ADD COLUMN asked_at BIGINT NOT NULL DEFAULT 0",
    "CREATE INDEX runner_endpoints_due ON runner_endpoints (enabled, next_check_at)",
    "CREATE INDEX agents_runner ON agents (workspace_id, runner_id)",
    "CREATE TABLE endpoint_health (
        endpoint_id TEXT NOT NULL, n BIGINT NOT NULL, at BIGINT NOT NULL, health TEXT NOT NULL,
        reason TEXT, latency_ms BIGINT, accepted BIGINT NOT NULL, incompatible BIGINT NOT NULL,
        rejected BIGINT NOT NULL, added BIGINT NOT NULL, changed BIGINT NOT NULL,
        removed BIGINT NOT NULL, PRIMARY KEY (endpoint_id, n))",
];

const DOWN: &[&str] = &[
    "DROP TABLE endpoint_health",
    "DROP INDEX agents_runner",
    "DROP INDEX runner_endpoints_due",
    "ALTER TABLE runner_endpoints DROP COLUMN asked_at",
    "ALTER TABLE runner_endpoints DROP COLUMN next_check_at",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // A default of 0 makes each existing endpoint due at once.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
