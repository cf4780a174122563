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

/// Effect of a budget on a call beyond it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum OnReached {
    /// The call is refused.
    #[default]
    Refuse,
    /// The call waits for a raise, as an interaction of kind `budget`.
    Pause,
}

/// Body of `PUT /v1/budgets/{budget}`, with the keys of `[[budgets]]`. At least one of `calls`, `tokens`, `cost` and
/// `seconds` is required.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct BudgetDefinition {
    pub scope: BudgetScope,
    /// Id of the only subject. Absent: each subject has a budget of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<String>,
    /// Required for all scopes but `run`, which has none: a run is counted from start to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<ResetInterval>,
    /// Calls of models, tools and knowledge bases, at most 10^12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<u64>,
    /// Tokens of prompts and completions, at most 10^12.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Cost in the currency of the configured prices, 0 to 10^9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Duration of calls in seconds, 0 to 10^9.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// `refuse` (default) or `pause`.
    #[serde(default)]
    pub on_reached: OnReached,
    /// Only with `pause`: maximum wait of a run for raises of this budget, in seconds and in total; 1 to 86,400,
    /// default 3,600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 86_400))]
    pub max_wait_seconds: Option<u64>,
}
