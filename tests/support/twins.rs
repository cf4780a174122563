//! Tests on both databases whose SQL is the same on both and is also covered by other tests. `.ci/long` runs
//! their `PostgreSQL` half with `RUNNEL_TEST_TWINS=1`. `tests/tidy.rs` checks that each has two halves, and that
//! none covers an engine-specific file of the store.

use std::sync::Once;

use super::waiting::announce;

/// Test modules.
const TWINS: &[&str] = &[
    "action_graphs",
    "browsers",
    "canaries",
    "deviations",
    "dry_run",
    "event_files",
    "event_formats",
    "facts",
    "interaction_waits",
    "late_bodies",
    "local_agent",
    "mcp_tools",
    "migrated_pipelines",
    "misbehaviour",
    "pipeline_adapter",
    "reading",
    "response_limits",
    "run_endings",
    "shapes",
    "shared_mcp",
    "skills",
    "tool_effects",
    "tool_servers",
    "tools",
    "traces",
    "transport",
];

static SKIPPED_TWINS: Once = Once::new();

/// True if the test of this thread must skip its `PostgreSQL` half.
pub fn is_twin_skipped() -> bool {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    let is_twin = test.split("::").any(|part| TWINS.contains(&part));
    let is_twin = is_twin && test.contains("Postgres");
    let is_twin_skipped = is_twin && std::env::var_os("RUNNEL_TEST_TWINS").is_none();
    if is_twin_skipped {
        announce(
            &SKIPPED_TWINS,
            "SKIPPED twins: .ci/long runs these on PostgreSQL, RUNNEL_TEST_TWINS=1 here",
        );
    }
    is_twin_skipped
}
