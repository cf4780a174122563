//! Limits of API keys and agents, and the limiters of a replica (`GET /v1/limits`).

use serde::{Deserialize, Serialize};

/// Limits of an API key or of an agent. At least one of them is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct OwnLimits {
    /// Of a key: requests in a minute that start runs. Of an agent: runs in a minute. On each replica; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub rate: Option<u32>,
    /// Requests or runs at once, after a pause. Only with `rate`; absent: `rate`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub burst: Option<u32>,
    /// Live runs of the agent, or those that the key has started; queued ones included. Absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000))]
    pub concurrency: Option<u32>,
    /// Input and output tokens in a minute of model calls by runs of the agent, or by runs that the key has started and
    /// their child runs. On each replica; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1_000_000_000))]
    pub tokens_per_minute: Option<u32>,
}

/// Kind of an object with limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum LimitedKind {
    ApiKey,
    Agent,
    Model,
    ModelProvider,
}

/// Measure of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum MeasuredLimit {
    /// Requests in a minute; of an agent: runs in a minute.
    Rate,
    /// Live runs of a key or agent; requests in flight to a model or provider.
    Concurrency,
    /// Input and output tokens of model calls in a minute.
    TokensPerMinute,
}

/// State of one limiter of a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LimiterStatus {
    pub kind: LimitedKind,
    /// Id of the key, agent or model; name of the provider.
    pub id: String,
    /// Name of the key or agent; else the id.
    pub name: String,
    pub limit: MeasuredLimit,
    /// Requests, runs or tokens in a minute; for `concurrency`: at the same time.
    pub max: u64,
    /// Requests or runs at once, after a pause. Only for `rate`.
    pub burst: Option<u64>,
    /// For `concurrency`: live runs on all replicas, or requests in flight on this one. For `tokens_per_minute`: tokens
    /// that the calls in flight on this replica have reserved. Null for `rate`.
    pub in_flight: Option<u64>,
    /// Tokens in the bucket of this replica. Calls are admitted while it is positive; calls in flight can make it
    /// negative. Only for `tokens_per_minute`.
    pub available: Option<i64>,
    /// Requests that wait on this replica.
    pub queued: u64,
    /// Requests that this replica has refused since its start.
    pub refused: u64,
}
