//! Tables, one per file. They never leave this crate.
#![expect(unreachable_pub, reason = "the entity macros want `pub`")]

pub(crate) mod agent_skills;
pub(crate) mod agents;
pub(crate) mod api_keys;
pub(crate) mod artifacts;
pub(crate) mod audit_entries;
pub(crate) mod budget_reservations;
pub(crate) mod budget_usage;
pub(crate) mod conversations;
pub(crate) mod endpoint_health;
pub(crate) mod events;
pub(crate) mod raw_payloads;
pub(crate) mod run_appends;
pub(crate) mod run_attempts;
pub(crate) mod run_deferrals;
pub(crate) mod run_rejections;
pub(crate) mod run_segments;
pub(crate) mod runner_endpoints;
pub(crate) mod runners;
pub(crate) mod runs;
pub(crate) mod shared_parts;
pub(crate) mod signing_keys;
pub(crate) mod state_entries;
pub(crate) mod steering_items;
pub(crate) mod storage_blobs;
pub(crate) mod storage_chunks;
pub(crate) mod storage_garbage;
pub(crate) mod tool_calls;
pub(crate) mod transcript_items;
pub(crate) mod transcript_terms;
pub(crate) mod usage_calls;
pub(crate) mod workspaces;
