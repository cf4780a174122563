//! Budgets: limits on the calls of runs to models, tools and knowledge bases (`docs/models.md`, section Budgets).

use serde::{Deserialize, Serialize};

/// Subject whose use is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum BudgetScope {
    Run,
    Agent,
    Endpoint,
    Workspace,
}

/// Interval after which the use counts from zero again. Intervals begin in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ResetInterval {
    Hour,
    Day,
    Month,
}

/// Body of `PUT /v1/budgets/{budget}`, with the keys of `[[budgets]]`. At least one of `calls`, `tokens`, `cost` and
/// `seconds` is required.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BudgetSpec {
    pub scope: BudgetScope,
    /// Id of the only subject. Absent: each subject has a budget of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<String>,
    /// Required for all scopes but `run`, which has none: a run is counted from start to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<ResetInterval>,
    /// Calls of models, tools and knowledge bases, at most 10^12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 1_000_000_000_000_u64))]
    pub calls: Option<u64>,
    /// Tokens of prompts and completions, at most 10^12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(maximum = 1_000_000_000_000_u64))]
    pub tokens: Option<u64>,
    /// Cost in the currency of the configured prices, 0 to 10^9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_000_000_000))]
    pub cost: Option<f64>,
    /// Duration of calls in seconds, 0 to 10^9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 1_000_000_000))]
    pub seconds: Option<f64>,
}
