//! What discovery would change at an endpoint, and how its health has gone.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::admin::{AcceptedRunner, Fault, IncompatibleRunner, RejectedManifest};
use crate::id::{AgentId, RunnerId};

/// What asking an endpoint came to, and what storing it would change. Nothing of it is stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DiscoveryDiff {
    /// The endpoint's name.
    pub endpoint: String,
    /// `healthy`, `unreachable` or `unhealthy`. Unless it is `healthy`, nothing would change but that.
    pub health: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_reason: Option<String>,
    /// How long the endpoint took. Absent: it was not asked, its manifests are registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<i64>,
    /// Runners that could be bound and could not before.
    pub added: Vec<AcceptedRunner>,
    pub changed: Vec<ChangedRunner>,
    pub unchanged: Vec<RunnerId>,
    /// Runners that are not listed any more, or only with faults.
    pub removed: Vec<RunnerId>,
    pub incompatible: Vec<IncompatibleRunner>,
    pub rejected: Vec<RejectedManifest>,
    /// Runners that another endpoint serves.
    pub conflicts: Vec<RunnerConflict>,
    /// Agents that are bound to a runner that would come, change or go; at most 1000.
    pub agents: Vec<AffectedAgent>,
}

/// A runner whose manifest would be another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangedRunner {
    pub id: RunnerId,
    /// At most 200.
    pub fields: Vec<ChangedField>,
    /// Changes beyond those.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_fields: u64,
    /// What in its manifest was ignored or dropped, and where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Fault>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A place of a manifest that would change. `old` is absent where there was nothing, `new` where
/// there would be nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChangedField {
    /// A JSON pointer into the manifest.
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
    /// The name of the endpoint that serves it now.
    pub endpoint: String,
    /// Whether `replaces` names that endpoint: then its runs go here from now on. Else a registration
    /// is refused, and a refresh leaves the runner where it is.
    pub replaced: bool,
}

/// An agent that would notice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AffectedAgent {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: AgentId,
    pub name: String,
    pub enabled: bool,
    pub runner_id: RunnerId,
    /// `runner_added`, `runner_changed`, `runner_replaced`, `config_invalid`, `runner_incompatible` or
    /// `runner_removed`; events of the last two are refused.
    pub effect: String,
    /// What in the agent's config the new `config_schema` does not take: the first eight places.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
}

/// A change of an endpoint's health, or of what it lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct HealthChange {
    /// Epoch seconds.
    pub at: i64,
    /// `healthy`, `unreachable` or `unhealthy`, from then on.
    pub health: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// How long the endpoint took to answer, or to fail.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<i64>,
    /// Runners that can be bound since then.
    pub accepted: u64,
    pub incompatible: u64,
    /// Manifests that were rejected.
    pub rejected: u64,
    /// Runners that came, changed or went with it.
    pub added: u64,
    pub changed: u64,
    pub removed: u64,
}
