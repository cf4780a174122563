//! Tests on both databases whose SQL is the same on both and is also covered by other tests. `.ci/long` runs
//! their `PostgreSQL` half with `RUNNEL_TEST_TWINS=1`. `tests/tidy.rs` checks that each has two halves, and that
//! none covers an engine-specific file of the store.

use std::sync::Once;

use super::waiting::announce;

/// Test modules.
const TWINS: &[&str] = &[
    "deviations",
    "dry_run",
    "event_formats",
    "local_agent",
    "misbehaviour",
    "reading",
    "shapes",
    "skills",
    "mcp_tools",
    "tool_servers",
    "tools",
    "traces",
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
