//! Usage of external calls: each call with its reservation and actual usage, and the sums checked against
//! budgets.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // `budget_usage` holds the sums: a check reads one row instead of all calls of a window.
        run(
            manager,
            &[
                "CREATE TABLE usage_calls (id TEXT NOT NULL PRIMARY KEY, workspace_id TEXT NOT NULL, \
                 run_id TEXT NOT NULL, kind TEXT NOT NULL, resource TEXT NOT NULL, outcome TEXT NOT NULL, \
                 prompt_tokens BIGINT NOT NULL, completion_tokens BIGINT NOT NULL, is_estimate BIGINT NOT NULL, \
                 cost_micros BIGINT NOT NULL, wall_ms BIGINT NOT NULL, at BIGINT NOT NULL)",
                "CREATE INDEX usage_calls_run ON usage_calls (run_id, id)",
                "CREATE TABLE budget_usage (budget TEXT NOT NULL, subject TEXT NOT NULL, \
                 window_start BIGINT NOT NULL, calls BIGINT NOT NULL, tokens BIGINT NOT NULL, \
                 cost_micros BIGINT NOT NULL, wall_ms BIGINT NOT NULL, \
                 PRIMARY KEY (budget, subject, window_start))",
            ],
        )
        .await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(
            manager,
            &["DROP TABLE budget_usage", "DROP TABLE usage_calls"],
        )
        .await
    }
}
