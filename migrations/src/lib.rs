//! Numbered schema changes, the same for `SQLite` and `PostgreSQL`.
//!
//! A merged change is frozen: its statements, their order, its name, and `use_transaction`. The code around them
//! may change. A new change runs in one transaction, so a killed process leaves no partial change.

use sea_orm_migration::prelude::*;
pub use sea_orm_migration::{MigratorTrait, SchemaManager};

mod m20261121_000001_first_run;
mod m20261122_000001_steering;
mod m20261122_000002_event_log;
mod m20261122_000004_discovery;
mod m20261122_000005_transcript_search;
mod m20261122_000007_storage;
mod m20261122_000008_raw_payloads;
mod m20261122_000009_retention;
mod m20261122_000012_cancel_requests;
mod m20261122_000014_capacity;
mod m20261122_000015_storage_usage;
mod m20261122_000016_audit_outcome;
mod m20261122_000017_tool_calls;
mod m20261122_000018_knowledge;
mod m20261122_000019_artifacts;
mod m20261122_000020_budgets;
mod m20261122_000029_appended_results;
mod m20261122_000030_interactions;
mod m20261122_000031_trace_parents;
mod m20261122_000032_budget_reservations;
mod m20261122_000033_agent_skills;
mod m20261123_000034_narrow_runs;
mod m20261123_000035_audit_by_run;
mod m20261123_000036_conversations_by_id;
mod m20261123_000037_judged_through;
mod m20261123_000038_reservation_leases;
mod m20261125_000039_deleted_state;
mod m20261125_000040_old_budget_usage;
mod m20261125_000041_who_and_why;
mod m20261126_000042_closed_appends;
mod m20261126_000043_append_digests;
mod m20261126_000044_several_messages;
mod m20261126_000046_quota_shares;
mod m20261126_000048_refused_agents;
mod m20261126_000050_shared_parts;
mod m20261126_000051_run_lists;
mod m20261126_000052_shared_denials;
mod m20261127_000053_awaited_interactions;
mod m20261127_000058_state_shares;
mod m20261127_000060_child_runs;
mod m20261127_000061_shared_keys;
mod m20261127_000062_event_lookups;
mod m20261127_000064_run_retries;
mod m20261127_000065_stream_links;
mod m20261128_000066_key_expiry;
mod m20261128_000067_key_agents;
mod m20261128_000068_posted_by;
mod m20261128_000069_token_parts;
mod m20261128_000071_conversation_generations;

/// All migrations, in order.
pub struct Migrator;

#[async_trait::async_trait]
impl MigratorTrait for Migrator {
    fn migrations() -> Vec<Box<dyn MigrationTrait>> {
        vec![
            Box::new(m20261121_000001_first_run::Migration),
            Box::new(m20261122_000001_steering::Migration),
            Box::new(m20261122_000002_event_log::Migration),
            Box::new(m20261122_000004_discovery::Migration),
            Box::new(m20261122_000005_transcript_search::Migration),
            Box::new(m20261122_000007_storage::Migration),
            Box::new(m20261122_000008_raw_payloads::Migration),
            Box::new(m20261122_000009_retention::Migration),
            Box::new(m20261122_000012_cancel_requests::Migration),
            Box::new(m20261122_000014_capacity::Migration),
            Box::new(m20261122_000015_storage_usage::Migration),
            Box::new(m20261122_000016_audit_outcome::Migration),
            Box::new(m20261122_000017_tool_calls::Migration),
            Box::new(m20261122_000018_knowledge::Migration),
            Box::new(m20261122_000019_artifacts::Migration),
            Box::new(m20261122_000020_budgets::Migration),
            Box::new(m20261122_000029_appended_results::Migration),
            Box::new(m20261122_000030_interactions::Migration),
            Box::new(m20261122_000031_trace_parents::Migration),
            Box::new(m20261122_000032_budget_reservations::Migration),
            Box::new(m20261122_000033_agent_skills::Migration),
            Box::new(m20261123_000034_narrow_runs::Migration),
            Box::new(m20261123_000035_audit_by_run::Migration),
            Box::new(m20261123_000036_conversations_by_id::Migration),
            Box::new(m20261123_000037_judged_through::Migration),
            Box::new(m20261123_000038_reservation_leases::Migration),
            Box::new(m20261125_000039_deleted_state::Migration),
            Box::new(m20261125_000040_old_budget_usage::Migration),
            Box::new(m20261125_000041_who_and_why::Migration),
            Box::new(m20261126_000042_closed_appends::Migration),
            Box::new(m20261126_000043_append_digests::Migration),
            Box::new(m20261126_000044_several_messages::Migration),
            Box::new(m20261126_000046_quota_shares::Migration),
            Box::new(m20261126_000048_refused_agents::Migration),
            Box::new(m20261126_000050_shared_parts::Migration),
            Box::new(m20261126_000051_run_lists::Migration),
            Box::new(m20261126_000052_shared_denials::Migration),
            Box::new(m20261127_000053_awaited_interactions::Migration),
            Box::new(m20261127_000058_state_shares::Migration),
            Box::new(m20261127_000060_child_runs::Migration),
            Box::new(m20261127_000061_shared_keys::Migration),
            Box::new(m20261127_000062_event_lookups::Migration),
            Box::new(m20261127_000064_run_retries::Migration),
            Box::new(m20261127_000065_stream_links::Migration),
            Box::new(m20261128_000066_key_expiry::Migration),
            Box::new(m20261128_000067_key_agents::Migration),
            Box::new(m20261128_000068_posted_by::Migration),
            Box::new(m20261128_000069_token_parts::Migration),
            Box::new(m20261128_000071_conversation_generations::Migration),
        ]
    }
}

/// Runs statements in order and stops at the first error.
async fn run(manager: &SchemaManager<'_>, statements: &[&str]) -> Result<(), DbErr> {
    for statement in statements {
        let connection = manager.get_connection();
        // Unprepared, because each statement runs once.
        connection.execute_unprepared(statement).await?;
    }
    Ok(())
}
