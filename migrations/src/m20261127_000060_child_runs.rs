//! Parent of a child run, and reservations in budgets of several subjects for one call.

use sea_orm_migration::prelude::*;

use crate::run;

#[derive(DeriveMigrationName)]
pub(crate) struct Migration;

const UP: &[&str] = &[
    "ALTER TABLE runs ADD COLUMN parent_run_id TEXT",
    "CREATE INDEX runs_children ON runs (parent_run_id, created_at, id) \
     WHERE parent_run_id IS NOT NULL",
    "CREATE INDEX runs_live_children ON runs (parent_run_id) \
     WHERE parent_run_id IS NOT NULL AND finished_at IS NULL",
    "CREATE TABLE budget_reservations_by_subject (call_id TEXT NOT NULL, budget TEXT NOT NULL, \
     subject TEXT NOT NULL, window_start BIGINT NOT NULL, run_id TEXT NOT NULL, \
     calls BIGINT NOT NULL, tokens BIGINT NOT NULL, cost_micros BIGINT NOT NULL, \
     wall_ms BIGINT NOT NULL, lease_expires_at BIGINT, PRIMARY KEY (call_id, budget, subject))",
    "INSERT INTO budget_reservations_by_subject (call_id, budget, subject, window_start, run_id, calls, \
     tokens, cost_micros, wall_ms, lease_expires_at) SELECT call_id, budget, subject, window_start, run_id, \
     calls, tokens, cost_micros, wall_ms, lease_expires_at FROM budget_reservations",
    "DROP TABLE budget_reservations",
    "ALTER TABLE budget_reservations_by_subject RENAME TO budget_reservations",
];

const DOWN: &[&str] = &[
    "CREATE TABLE budget_reservations_by_budget (call_id TEXT NOT NULL, budget TEXT NOT NULL, \
     subject TEXT NOT NULL, window_start BIGINT NOT NULL, run_id TEXT NOT NULL, \
     calls BIGINT NOT NULL, tokens BIGINT NOT NULL, cost_micros BIGINT NOT NULL, \
     wall_ms BIGINT NOT NULL, lease_expires_at BIGINT, PRIMARY KEY (call_id, budget))",
    "INSERT INTO budget_reservations_by_budget (call_id, budget, subject, window_start, run_id, calls, \
     tokens, cost_micros, wall_ms, lease_expires_at) SELECT call_id, budget, subject, window_start, run_id, \
     calls, tokens, cost_micros, wall_ms, lease_expires_at FROM budget_reservations r WHERE r.subject = \
     (SELECT min(o.subject) FROM budget_reservations o WHERE o.call_id = r.call_id AND o.budget = r.budget)",
    "DROP TABLE budget_reservations",
    "ALTER TABLE budget_reservations_by_budget RENAME TO budget_reservations",
    "DROP INDEX runs_live_children",
    "DROP INDEX runs_children",
    "ALTER TABLE runs DROP COLUMN parent_run_id",
];

#[async_trait::async_trait]
impl MigrationTrait for Migration {
    fn use_transaction(&self) -> Option<bool> {
        Some(true)
    }

    async fn up(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        // A new table, because `SQLite` cannot change a primary key in place.
        run(manager, UP).await
    }

    async fn down(&self, manager: &SchemaManager) -> Result<(), DbErr> {
        run(manager, DOWN).await
    }
}
