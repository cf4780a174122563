//! Limits of runs, from the configuration.

use std::time::Duration;

use domain::breaker::BreakerPolicy;
use domain::normalize::ResultLimits;
use protocol::JsonObject;
use serde_json::json;
use store::ArtifactShares;

use crate::rate::EventRate;

/// Limits of runs.
#[derive(Clone, Debug)]
pub struct RunLimits {
    pub line_bytes: usize,
    pub results: ResultLimits,
    pub storage_blob_bytes: u64,
    pub storage_area_bytes: u64,
    pub first_byte: Duration,
    pub silence: Duration,
    pub cancel_grace: Duration,
    pub shutdown_grace: Duration,
    pub lease: Duration,
    /// Maximum silence of a runner that appends its results.
    pub append_lease: Duration,
    pub max_deadline: Duration,
    /// Retention of the events of an ended run; `None`: for ever.
    pub retention: Option<Duration>,
    /// Retention of the audit of a call; `None`: for ever.
    pub audit_retention: Option<Duration>,
    /// Retention of administrative changes; `None`: unlimited.
    pub change_retention: Option<Duration>,
    pub artifacts: ArtifactLimits,
    /// Interval of polling for changes of other replicas, in case notifications are lost.
    pub poll: Duration,
    /// Interval between two discoveries of an endpoint.
    pub discovery_ttl: Duration,
    /// Interval between two discoveries of an endpoint that has given no list.
    pub discovery_retry: Duration,
    /// Number of denied calls on this replica after which a run is ended.
    pub run_denied_calls: u64,
    /// Maximum number of live runs of one workspace, queued ones included; `None`: no limit.
    pub workspace_runs: Option<u64>,
    /// Rate limit of the events of one workspace on this replica; `None`: no limit.
    pub workspace_events: Option<EventRate>,
    /// Policy of the circuit breaker of each endpoint.
    pub breaker: BreakerPolicy,
}

/// Limits of each artifact, and of all artifacts of a workspace.
#[derive(Clone, Debug)]
pub struct ArtifactLimits {
    pub max_bytes: u64,
    pub workspace_bytes: u64,
    /// Shares of these bytes for one owner.
    pub shares: ArtifactShares,
    pub expires: Duration,
    pub mime_types: Vec<String>,
}

/// Limits as the context of a run shows them.
pub fn context_limits(limits: &RunLimits) -> JsonObject {
    let shown = json!({
        "line_bytes": limits.line_bytes,
        "event_bytes": limits.results.event_bytes,
        "run_bytes": limits.results.run_bytes,
        "run_events": limits.results.run_events,
        "state_value_bytes": limits.results.state_value_bytes,
        "first_byte_seconds": limits.first_byte.as_secs_f64(),
        "silence_seconds": limits.silence.as_secs_f64(),
        "append_lease_seconds": limits.append_lease.as_secs_f64(),
    });
    shown.as_object().cloned().unwrap_or_default()
}
