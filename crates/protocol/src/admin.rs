//! The objects of the admin API: agents and runner endpoints.

mod fault;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::id::{AgentId, EndpointId, RunnerId};
use crate::lists;

mod policy;

pub use policy::{AgentFilters, IdList, ResourcePolicy, Star, StatePolicy};

pub use fault::{FAULT_CHARS, Fault, MOST_FAULTS};

/// A persisted configuration that binds event types to one runner: the body of `POST /v1/agents`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Unique in its workspace; 1–128 bytes.
    pub name: String,
    /// Purpose of the agent, shown to agents that may start child runs of it; at most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The higher wins among agents of the same scope.
    #[serde(default)]
    pub priority: i64,
    /// Exact names, `prefix.*`, or `*` for all.
    #[serde(deserialize_with = "lists::bounded")]
    pub event_types: Vec<String>,
    #[serde(default)]
    pub scope: AgentScope,
    #[serde(default)]
    pub filters: AgentFilters,
    pub runner_id: RunnerId,
    /// Checked against the runner's `config_schema`. `timeout`: seconds, default 300; 0 or null asks for the longest.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub config: JsonObject,
    #[serde(default)]
    pub resource_policy: ResourcePolicy,
    #[serde(default)]
    pub state_policy: StatePolicy,
    #[serde(default)]
    pub delivery_policy: DeliveryPolicy,
    #[serde(default)]
    pub concurrency: Concurrency,
    #[serde(default)]
    pub retry: RetryPolicy,
}

fn yes() -> bool {
    true
}

/// Which events an agent may win. The most specific scope wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentScope {
    #[serde(default)]
    pub kind: ScopeKind,
    /// Required for `bot`; part of `conversation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    /// Required for `conversation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
}

/// From the widest to the most specific.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ScopeKind {
    Global,
    #[default]
    Workspace,
    Bot,
    Conversation,
}

impl ScopeKind {
    /// The name on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Workspace => "workspace",
            Self::Bot => "bot",
            Self::Conversation => "conversation",
        }
    }
}

/// How answers may leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryPolicy {
    pub interactions: bool,
}

/// What happens to an event while a run of the same agent is active in its conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Concurrency {
    /// A new run beside it.
    #[default]
    Concurrent,
    /// 409 `run_active`.
    Reject,
    /// A run that begins when the ones before it have ended. 100 wait at most, then 429 `queue_full`.
    Enqueue,
    /// The same, and the ones before it are cancelled.
    Interrupt,
    /// A `message.received` goes to the run that is there, which pulls it: `POST /host/v1/steering/pull`. Other events,
    /// and messages for runners without the capability `steering`, get a run beside it.
    Steer,
}

/// How often a POST that surely did not reach the runner is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// 0–5, default 2.
    #[cfg_attr(feature = "openapi", schema(maximum = 5))]
    pub max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { max: 2 }
    }
}

/// An agent as the API shows it: its spec and what the gateway keeps beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    pub id: AgentId,
    /// `api` or `config`. What stands in the config file is read-only over the API.
    pub origin: String,
    /// Rises with every change; `PUT` takes it as `If-Match`.
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    /// Why an agent of the config file is disabled although the file enables it: it does not fit its runner. Absent for
    /// all others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Fault>,
    #[serde(flatten)]
    pub spec: AgentSpec,
}

/// How an endpoint is addressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndpointMode {
    /// `GET /runners`, `POST /runs`, `POST /runs/{id}/cancel` below the base URL.
    #[default]
    Standard,
    /// Everything by POST to the one URL, with `action` in the body.
    SingleUrl,
}

/// What `chunk.content` of the endpoint's deltas is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeltaMode {
    #[default]
    Increment,
    /// The whole text so far.
    Snapshot,
}

/// The body of `POST /v1/runner-endpoints`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Unique in its workspace; 1–128 bytes.
    pub name: String,
    /// `https`, or `http` where the egress allow-list covers it.
    pub base_url: String,
    #[serde(default)]
    pub mode: EndpointMode,
    #[serde(default)]
    pub delta_mode: DeltaMode,
    /// `whsec_` and base64 of 24–64 bytes. One is made and shown once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Static headers of every request; write-only.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// The manifests of an endpoint that cannot list them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Object>>))]
    pub manifests: Option<Vec<Value>>,
    /// The most runs that it may have at once; 0 or absent: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<u64>,
    /// The name of the endpoint whose runner ids this one takes over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// A registered endpoint and what discovery found there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerEndpoint {
    pub id: EndpointId,
    pub name: String,
    pub origin: String,
    pub base_url: String,
    pub mode: EndpointMode,
    pub delta_mode: DeltaMode,
    /// `healthy`; `unreachable`: no answer came; `unhealthy`: an answer that is no list of runners;
    /// `unknown`: not asked yet. Who gives no list keeps the runners that it listed last.
    pub health: String,
    /// Why discovery failed, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_reason: Option<String>,
    pub secret_set: bool,
    /// The secret that was made; only in the answer of the registration that made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    pub header_names: Vec<String>,
    /// The most runs that it may have at once; null: no bound.
    pub max_runs: Option<u64>,
    pub breaker: CircuitBreaker,
    /// Epoch seconds of the last discovery that got an answer.
    pub discovered_at: Option<i64>,
    /// Epoch seconds from which it is asked again. Absent: it brought its manifests along.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_check_at: Option<i64>,
    pub accepted: Vec<AcceptedRunner>,
    pub incompatible: Vec<IncompatibleRunner>,
    pub rejected: Vec<RejectedManifest>,
}

/// Whether runs are posted to an endpoint, as the replica that answers sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CircuitBreaker {
    /// `closed`: runs go; `open`: they end as `runner.circuit_open`; `half_open`: one tries.
    pub state: String,
    /// Failures in a row.
    pub failures: u32,
    /// Epoch seconds since when it has not been closed.
    pub opened_at: Option<i64>,
    /// Epoch seconds from which one run tries.
    pub retry_at: Option<i64>,
}

/// A runner that can be bound.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcceptedRunner {
    pub id: RunnerId,
    /// What in its manifest was ignored or dropped, and where.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Fault>,
}

/// A runner of another major version: listed, not bindable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IncompatibleRunner {
    pub id: RunnerId,
    pub reason: String,
}

/// A manifest that cannot be used, by its place in the answer.
pub type RejectedManifest = Fault;

/// A runner of the registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerView {
    pub id: RunnerId,
    /// The name of the endpoint that serves it.
    pub endpoint: String,
    /// `accepted`; `incompatible`: of another major version; `absent`: an agent is bound to it, and its
    /// endpoint does not list it any more.
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub manifest: Value,
    /// Changes with the manifest.
    pub manifest_sha256: String,
    /// Epoch seconds at which its endpoint listed it last.
    pub seen_at: i64,
}
