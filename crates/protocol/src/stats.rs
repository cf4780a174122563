//! Statistics of runs and runtimes. An unknown value is absent, not 0.

use serde::{Deserialize, Serialize};

/// Statistics of the runs created within a window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RunStats {
    /// Start of the window, in epoch seconds, inclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<i64>,
    /// End of the window, in epoch seconds, exclusive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<i64>,
    /// Sum of the eight counts that follow.
    pub total_count: u64,
    pub created_count: u64,
    pub queued_count: u64,
    pub claimed_count: u64,
    pub running_count: u64,
    pub completed_count: u64,
    pub failed_count: u64,
    pub cancelled_count: u64,
    pub timeout_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub throughput_per_hour: Option<f64>,
    /// Completed runs divided by all runs, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<f64>,
    /// Failed and timed-out runs divided by all runs, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure_rate: Option<f64>,
    /// Average time from start to finish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avg_duration_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_duration_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_duration_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_duration_seconds: Option<f64>,
    /// Average time from creation to start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avg_queue_wait_seconds: Option<f64>,
}

/// Current statistics of the registered runtimes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct RuntimeStats {
    pub total_count: u64,
    pub online_count: u64,
    pub stale_count: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub avg_heartbeat_age_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_heartbeat_age_seconds: Option<f64>,
    /// Runs that are not terminal.
    pub active_runs: u64,
    pub claimed_runs: u64,
}

/// Statistics of the runs of one runner within a window. Lists use [`Page`](crate::run::Page).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerStats {
    pub runner_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runner_label: Option<String>,
    /// `author/plugin` of the runner's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plugin_identity: Option<String>,
    #[serde(default)]
    pub total_runs: u64,
    /// Runs that are not terminal.
    #[serde(default)]
    pub active_runs: u64,
    #[serde(default)]
    pub completed_runs: u64,
    #[serde(default)]
    pub failed_runs: u64,
    /// Completed runs divided by all runs, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_rate: Option<f64>,
    /// Average time from start to finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avg_duration_seconds: Option<f64>,
}
