//! Admin API objects: agents and runner endpoints.

mod fault;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::JsonObject;
use crate::id::{AgentId, EndpointId, RunnerId};
use crate::limiter::OwnLimits;
use crate::lists;
use crate::platform_action::ActionApproval;
use crate::principal::Principal;

mod policy;

pub use policy::{
    AgentFilters, IdList, OnDenied, OnUnknownEffect, PolicyCheck, ResourcePolicy, Star,
    StatePolicy, ToolPolicy, ToolRule,
};

pub use fault::{FAULT_CHARS, Fault, MAX_FAULTS};

/// Body of `POST /v1/agents`: a stored configuration that binds event types to one runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Name of the agent, unique in its workspace; 1–128 bytes.
    pub name: String,
    /// Purpose of the agent, shown to agents that may start child runs of it; at most 1,000 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Among agents of the same scope, the highest priority wins.
    #[serde(default)]
    pub priority: i64,
    /// Event types that the agent handles: exact names, `prefix.*`, or `*` for all.
    #[serde(deserialize_with = "lists::bounded")]
    pub event_types: Vec<String>,
    #[serde(default)]
    pub scope: AgentScope,
    #[serde(default)]
    pub filters: AgentFilters,
    pub runner_id: RunnerId,
    /// Runner configuration, validated against the runner's `config_schema`. `timeout` is in seconds, default
    /// 300; 0 or null selects the maximum.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub config: JsonObject,
    /// Language of the answers, such as `en_US`, for events without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locale: Option<String>,
    /// IANA time zone name, such as `Europe/Berlin`, for events without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    #[serde(default)]
    pub resource_policy: ResourcePolicy,
    #[serde(default)]
    pub state_policy: StatePolicy,
    #[serde(default)]
    pub delivery_policy: DeliveryPolicy,
    #[serde(default)]
    pub concurrency: Concurrency,
    /// Seconds without a message after which a conversation begins anew: the next event finds neither history nor
    /// conversation state, and clients still read the old messages. 1–31,536,000; default: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_idle_seconds: Option<u64>,
    #[serde(default)]
    pub retry: RetryPolicy,
    /// Limits of the runs of the agent. Absent: no limits of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<OwnLimits>,
}

fn yes() -> bool {
    true
}

/// Events that the agent can match. The most specific scope wins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentScope {
    #[serde(default)]
    pub kind: ScopeKind,
    /// Bot id. Required for `bot`; part of `conversation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_id: Option<String>,
    /// Conversation id. Required for `conversation`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
}

/// Scope kinds, from the widest to the most specific.
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
    /// Returns the name used on the wire and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Global => "global",
            Self::Workspace => "workspace",
            Self::Bot => "bot",
            Self::Conversation => "conversation",
        }
    }
}

/// Delivery options for answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryPolicy {
    pub interactions: bool,
    /// Platform actions that runs may request, with their approval: `auto`, or `ask` for a person's approval each
    /// time. Default: none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub platform_actions: BTreeMap<String, ActionApproval>,
}

/// Handling of an event while a run of the same agent is active in the conversation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Concurrency {
    /// Starts a new run in parallel.
    #[default]
    Concurrent,
    /// Rejects the event with 409 `run_active`.
    Reject,
    /// Queues a run until the earlier runs end. The queue holds at most 100 runs, then the API returns 429
    /// `queue_full`.
    Enqueue,
    /// Cancels the earlier runs and queues a run until they end.
    Interrupt,
    /// Gives a `message.received` to the active run, which pulls it by `POST /host/v1/steering/pull`. Other
    /// events start a run in parallel, as do messages for runners without the capability `steering`.
    Steer,
}

/// Further attempts of a run: after a POST that certainly did not reach the runner, and after the failures of `on`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Maximum number of repeated POSTs, and maximum number of new starts: 0–5, default 2.
    #[cfg_attr(feature = "openapi", schema(maximum = 5))]
    pub max: u32,
    /// Failures after which the run starts again. Default: none.
    #[serde(
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "lists::each_once"
    )]
    pub on: Vec<RetryCause>,
    /// Point from which the run starts again.
    #[serde(skip_serializing_if = "RestartPoint::is_start")]
    pub from: RestartPoint,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max: 2,
            on: Vec::new(),
            from: RestartPoint::Start,
        }
    }
}

/// Failure after which a run can start again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum RetryCause {
    /// The process of a resumable runner was lost, and its live runs with it.
    #[serde(rename = "runner.lost")]
    RunnerLost,
}

/// Point from which a run starts again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum RestartPoint {
    /// The event: all earlier results are superseded.
    #[default]
    Start,
    /// The newest checkpoint of the run; the event if it has none. Results after it are superseded.
    Checkpoint,
}

impl RestartPoint {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde passes a reference"
    )]
    fn is_start(&self) -> bool {
        *self == Self::Start
    }
}

/// An agent: its spec and the fields that the gateway maintains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Agent {
    pub id: AgentId,
    /// `api` or `config`. Agents from the config file are read-only over the API.
    pub origin: String,
    /// Increases with every change; send it as `If-Match` with `PUT`.
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    /// Cause of the last change, which may be the creation: an API key, or the configuration file. Absent for a change by
    /// an older gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_by: Option<Principal>,
    /// Reasons for which an agent that the config file enables is disabled: it does not fit its runner. Absent
    /// for all other agents.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Fault>,
    #[serde(flatten)]
    pub spec: AgentSpec,
}

/// Addressing scheme of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum EndpointMode {
    /// Separate routes below the base URL: `GET /runners`, `POST /runs`, `POST /runs/{id}/cancel`.
    #[default]
    Standard,
    /// One URL: every call is a POST with `action` in the body.
    SingleUrl,
}

/// Meaning of `chunk.content` in the endpoint's deltas.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum DeltaMode {
    #[default]
    Increment,
    /// The complete text so far.
    Snapshot,
}

/// Body of `POST /v1/runner-endpoints`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EndpointSpec {
    /// Name of the endpoint, unique in its workspace; 1–128 bytes.
    pub name: String,
    /// Base URL: `https`, or `http` where the egress allow-list covers it.
    pub base_url: String,
    #[serde(default)]
    pub mode: EndpointMode,
    #[serde(default)]
    pub delta_mode: DeltaMode,
    /// Signing secret: `whsec_` and base64 of 24–64 bytes. When absent, the gateway generates one and returns it
    /// once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Static headers of every request. Write-only.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Manifests of an endpoint that cannot list them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "lists::bounded_if_any")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Vec<Object>>))]
    pub manifests: Option<Vec<Value>>,
    /// Maximum number of concurrent runs. 0 or absent: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_runs: Option<u64>,
    /// Name of the endpoint whose runner ids this endpoint takes over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// A registered endpoint and the result of its discovery.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerEndpoint {
    pub id: EndpointId,
    pub name: String,
    pub origin: String,
    pub base_url: String,
    pub mode: EndpointMode,
    pub delta_mode: DeltaMode,
    /// Health of the endpoint. An endpoint that is not `healthy` keeps the runners of its last list.
    ///
    /// - `healthy`: discovery succeeded.
    /// - `unreachable`: the endpoint did not answer.
    /// - `unhealthy`: the answer was not a list of runners.
    /// - `unknown`: discovery has not run yet.
    pub health: String,
    /// Reason of the last discovery failure. Absent after a success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health_reason: Option<String>,
    pub secret_set: bool,
    /// The generated secret. Only in the response to the registration that generated it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    pub header_names: Vec<String>,
    /// Maximum number of concurrent runs. Null: unlimited.
    pub max_runs: Option<u64>,
    pub breaker: CircuitBreaker,
    /// Time of the last discovery that received an answer, in epoch seconds.
    pub discovered_at: Option<i64>,
    /// Time of the next discovery, in epoch seconds. Absent for an endpoint with registered manifests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_check_at: Option<i64>,
    pub accepted: Vec<AcceptedRunner>,
    pub incompatible: Vec<IncompatibleRunner>,
    pub rejected: Vec<RejectedManifest>,
}

/// Circuit breaker state of an endpoint on the replica that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CircuitBreaker {
    /// `closed`: runs are dispatched. `open`: runs end as `runner.circuit_open`. `half_open`: one run is
    /// dispatched as a probe.
    pub state: String,
    /// Consecutive failures.
    pub failures: u32,
    /// Time at which the breaker left `closed`, in epoch seconds.
    pub opened_at: Option<i64>,
    /// Time from which one probe run is dispatched, in epoch seconds.
    pub retry_at: Option<i64>,
}

/// A runner that agents can bind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AcceptedRunner {
    pub id: RunnerId,
    /// Ignored or dropped parts of its manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Fault>,
}

/// A runner of another major protocol version. It is listed but agents cannot bind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct IncompatibleRunner {
    pub id: RunnerId,
    pub reason: String,
}

/// A manifest that cannot be used, with its position in the list.
pub type RejectedManifest = Fault;

/// A runner in the registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunnerView {
    pub id: RunnerId,
    /// Name of the endpoint that serves the runner.
    pub endpoint: String,
    /// Status of the runner.
    ///
    /// - `accepted`: agents can bind it.
    /// - `incompatible`: it has another major protocol version.
    /// - `absent`: an agent binds it, but its endpoint no longer lists it.
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub manifest: Value,
    /// SHA-256 of the manifest.
    pub manifest_sha256: String,
    /// Time at which its endpoint last listed it, in epoch seconds.
    pub seen_at: i64,
}
