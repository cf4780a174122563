//! Tests on both databases whose SQL is the same on both and is also covered by other tests. `.ci/long` runs
//! their `PostgreSQL` half with `RUNNEL_TEST_TWINS=1`. `tests/tidy.rs` checks that each has two halves, and that
//! none covers an engine-specific file of the store.

use std::sync::Once;

use super::waiting::announce;

/// Test modules.
const TWINS: &[&str] = &[
    "deviations",
    "dry_run",
    "event_forms",
    "local_agent",
    "misbehaviour",
    "reading",
    "shapes",
    "skills",
    "tool_face",
    "tool_servers",
    "tools",
    "traces",
];

static LEFT_OUT: Once = Once::new();

/// True if the test of this thread must skip its `PostgreSQL` half.
pub fn is_left_out() -> bool {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or_default();
    let is_twin = test.split("::").any(|part| TWINS.contains(&part));
    let is_twin = is_twin && test.contains("Postgres");
    let is_left_out = is_twin && std::env::var_os("RUNNEL_TEST_TWINS").is_none();
    if is_left_out {
        announce(
            &LEFT_OUT,
            "SKIPPED twins: .ci/long runs these on PostgreSQL, RUNNEL_TEST_TWINS=1 here",
        );
    }
    is_left_out
}
