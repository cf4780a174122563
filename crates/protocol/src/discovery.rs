//! Preview of a discovery, and the health history of an endpoint.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::{AcceptedRunner, Fault, IncompatibleRunner, RejectedManifest};
use crate::id::{AgentId, RunnerId};

/// Result of a discovery preview: the changes that storing it would make. The preview stores nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiscoveryDiff {
    /// Name of the endpoint.
    pub endpoint: String,
    /// `healthy`, `unreachable` or `unhealthy`. If not `healthy`, only the health would change.
    pub health: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_reason: Option<String>,
    /// Response time of the endpoint. Absent for an endpoint with registered manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<i64>,
    /// Runners that agents could bind from then on.
    pub added: Vec<AcceptedRunner>,
    pub changed: Vec<ChangedRunner>,
    pub unchanged: Vec<RunnerId>,
    /// Runners that the endpoint no longer lists, or lists only with faults.
    pub removed: Vec<RunnerId>,
    pub incompatible: Vec<IncompatibleRunner>,
    pub rejected: Vec<RejectedManifest>,
    /// Runners that another endpoint serves.
    pub conflicts: Vec<RunnerConflict>,
    /// Agents that bind an added, changed or removed runner; at most 1,000.
    pub agents: Vec<AffectedAgent>,
}

/// A runner whose manifest would change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangedRunner {
    pub id: RunnerId,
    /// Changed fields, at most 200.
    pub fields: Vec<ChangedField>,
    /// Number of changed fields beyond `fields`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_fields: u64,
    /// Ignored or dropped parts of its manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Fault>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A changed value in a manifest. `old` is absent for an added value, `new` for a removed value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangedField {
    /// JSON pointer into the manifest.
    pub pointer: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

/// A runner id that two endpoints list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerConflict {
    pub runner_id: RunnerId,
    /// Name of the endpoint that serves the runner now.
    pub endpoint: String,
    /// True if `replaces` names that endpoint: this endpoint then takes over the runs. Otherwise a registration
    /// fails, and a refresh leaves the runner at its endpoint.
    pub replaced: bool,
}

/// An agent that the change affects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AffectedAgent {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: AgentId,
    pub name: String,
    pub enabled: bool,
    pub runner_id: RunnerId,
    /// `runner_added`, `runner_changed`, `runner_replaced`, `config_invalid`, `runner_incompatible` or
    /// `runner_removed`. The gateway rejects events for agents with the last two.
    pub effect: String,
    /// First eight faults of the agent's config against the new `config_schema`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
}

/// A change of an endpoint's health or of its runner list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthChange {
    /// Time of the change, in epoch seconds.
    pub at: i64,
    /// New health: `healthy`, `unreachable` or `unhealthy`.
    pub health: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Time until the endpoint answered or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<i64>,
    /// Number of runners that agents can bind after the change.
    pub accepted: u64,
    pub incompatible: u64,
    /// Number of rejected manifests.
    pub rejected: u64,
    /// Number of runners added by the change.
    pub added: u64,
    pub changed: u64,
    pub removed: u64,
}
