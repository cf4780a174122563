//! Names of metrics that `store` counts and `telemetry` describes.

/// Seconds of one transaction, from begin to commit.
pub const COMMIT_SECONDS: &str = "runnel_commit_seconds";
/// Items of one transaction.
pub const COMMIT_ITEMS: &str = "runnel_commit_items";
/// Transactions that did not commit.
pub const COMMITS_FAILED: &str = "runnel_commits_failed_total";

/// Panics, by task.
pub const PANICS: &str = "runnel_panics_total";
