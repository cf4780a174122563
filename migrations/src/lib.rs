//! Numbered schema changes, the same for `SQLite` and `PostgreSQL`.
//!
//! A merged change is frozen: its statements, their order, its name, and `use_transaction`. The code around them
//! may change. A change runs in one transaction, so a killed process leaves no partial change.

use sea_orm_migration::prelude::*;
pub use sea_orm_migration::{MigratorTrait, SchemaManager};

mod m20261129_000001_baseline;
mod m20261129_000002_interactions_by_expiry;
mod m20261129_000003_principals;
mod m20261129_000004_usage_by_day;
mod m20261129_000005_run_checkpoints;
mod m20261129_000006_tool_call_tickets;
mod m20261129_000007_pauses_and_jobs;
mod m20261129_000008_budgets;
mod m20261129_000009_retry_from;
mod m20261130_000010_platform_actions;
mod m20261130_000011_webhooks;
mod m20261130_000012_schedules;
mod m20261130_000013_sources;
mod m20261130_000014_approvals;
mod m20261130_000018_changes;
mod m20261201_000019_key_limits;
mod m20261201_000020_sessions;
mod m20261201_000025_change_export;
mod m20261201_000026_amendments;
mod m20261201_000032_actor_tokens;

/// All migrations, in order.
pub struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(m20261129_000001_baseline::Migration),
            Box::new(m20261129_000002_interactions_by_expiry::Migration),
            Box::new(m20261129_000003_principals::Migration),
            Box::new(m20261129_000004_usage_by_day::Migration),
            Box::new(m20261129_000005_run_checkpoints::Migration),
            Box::new(m20261129_000006_tool_call_tickets::Migration),
            Box::new(m20261129_000008_budgets::Migration),
            Box::new(m20261129_000007_pauses_and_jobs::Migration),
            Box::new(m20261129_000009_retry_from::Migration),
            Box::new(m20261130_000010_platform_actions::Migration),
            Box::new(m20261130_000011_webhooks::Migration),
            Box::new(m20261130_000012_schedules::Migration),
            Box::new(m20261130_000013_sources::Migration),
            Box::new(m20261130_000014_approvals::Migration),
            Box::new(m20261130_000018_changes::Migration),
            Box::new(m20261201_000019_key_limits::Migration),
            Box::new(m20261201_000020_sessions::Migration),
            Box::new(m20261201_000025_change_export::Migration),
            Box::new(m20261201_000026_amendments::Migration),
            Box::new(m20261201_000032_actor_tokens::Migration),
        ]
    }
}
