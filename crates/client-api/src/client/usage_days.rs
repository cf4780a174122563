//! Use of a workspace by day and by agent or resource.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use axum::Json;
use axum::extract::State;
use protocol::budget::BudgetScope;
use protocol::error::ErrorBody;
use protocol::id::AgentId;
use serde::{Deserialize, Serialize};
use store::{UsageDays, UsageGrouping, UsageOfDay};

use crate::client::usage::{CallSums, Used};
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::query::QueryOf;
use web::state::ApiState;

const DAY_SECONDS: i64 = 86_400;
/// Days of a report without `from`.
const DEFAULT_DAYS: i64 = 30;
/// Maximum days of a report.
const MAX_DAYS: i64 = 92;
/// Later times are read as this one, so that products of days do not overflow.
const LAST_SECOND: u64 = 1 << 40;

/// Period and groups of a report.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageQuery {
    /// A time of the first day, in epoch seconds. Default: 30 days including the last one. At most 92 days.
    from: Option<u64>,
    /// The end, in epoch seconds: days that begin before it are included. Default: now.
    to: Option<u64>,
    /// `agent` (default): all calls by agent. `model`, `tool`, `knowledge_base`: only calls of these, by their id or
    /// name.
    #[serde(default)]
    #[param(inline)]
    group_by: GroupBy,
    /// Only runs of this agent.
    #[param(value_type = Option<String>)]
    agent_id: Option<AgentId>,
}

/// Groups of a report.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GroupBy {
    #[default]
    Agent,
    Model,
    Tool,
    KnowledgeBase,
}

/// Use by day and group.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct UsageReport {
    /// Begin of the first day (UTC), in epoch seconds.
    from: i64,
    /// End of the last day.
    to: i64,
    #[schema(inline)]
    group_by: GroupBy,
    /// Sum of all groups.
    total: UsedByRuns,
    /// The 20 groups with the highest cost, then tokens, then calls; last, the sum of all others.
    groups: Vec<UsageGroup>,
}

/// Use of one group.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct UsageGroup {
    /// Id of the agent, model or knowledge base, or name of the tool. Null: all others.
    id: Option<String>,
    /// Name of the agent. Absent for other groups, and for deleted agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    total: UsedByRuns,
    /// Days with calls, oldest first.
    days: Vec<UsedOnDay>,
}

/// Use of one day.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct UsedOnDay {
    /// Begin of the day (UTC), in epoch seconds.
    day: i64,
    #[serde(flatten)]
    used: UsedByRuns,
}

/// Calls, and the runs that made them.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct UsedByRuns {
    /// Runs, counted on the day of their first call. A run counts for each model, tool or knowledge base that it calls.
    runs: u64,
    #[serde(flatten)]
    used: Used,
}

/// Sums of a group or a day.
#[derive(Clone, Copy, Default)]
struct Sums {
    runs: u64,
    calls: CallSums,
}

impl Sums {
    fn plus(self, other: Self) -> Self {
        Self {
            runs: self.runs + other.runs,
            calls: self.calls.plus(other.calls),
        }
    }
}

impl From<&UsageOfDay> for Sums {
    fn from(usage: &UsageOfDay) -> Self {
        Self {
            runs: usage.runs,
            calls: CallSums {
                calls: usage.calls,
                tokens: usage.tokens,
                cost_micros: usage.cost_micros,
                wall_ms: usage.wall_ms,
            },
        }
    }
}

impl From<Sums> for UsedByRuns {
    fn from(sums: Sums) -> Self {
        Self {
            runs: sums.runs,
            used: sums.calls.into(),
        }
    }
}

impl From<GroupBy> for UsageGrouping {
    fn from(group_by: GroupBy) -> Self {
        match group_by {
            GroupBy::Agent => Self::Agent,
            GroupBy::Model => Self::Model,
            GroupBy::Tool => Self::Tool,
            GroupBy::KnowledgeBase => Self::KnowledgeBase,
        }
    }
}

/// Reports the use of models, tools and knowledge bases by day.
///
/// Days are those of UTC. The report has ended calls of the host API; a restricted key gets those of its agents.
#[utoipa::path(get, path = "/v1/usage", tag = "client", security(("api_key" = [])), params(UsageQuery), responses(
    (status = 200, description = "The report", body = UsageReport),
    (status = 400, description = "The period or a filter is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn report_usage(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<UsageQuery>,
) -> ApiResult<Json<UsageReport>> {
    let now = state.runs.clock().now_ms().div_euclid(1000);
    let days = days_of(query.from, query.to, now)?;
    let (workspace, agents) = caller.list_scope();
    let report = UsageDays {
        days: days.clone(),
        grouping: query.group_by.into(),
        agent_id: query.agent_id,
        agents,
    };
    let usage = state.runs.store().usage();
    let used = usage.usage_by_day(workspace, &report).await?;
    let names = match query.group_by {
        GroupBy::Agent => {
            let ids = used.iter().filter_map(|used| used.group.as_deref());
            let agents = BudgetScope::Agent;
            usage.names_of_subjects(workspace, agents, ids).await?
        }
        GroupBy::Model | GroupBy::Tool | GroupBy::KnowledgeBase => HashMap::new(),
    };
    Ok(Json(UsageReport {
        from: days.start * DAY_SECONDS,
        to: days.end * DAY_SECONDS,
        group_by: query.group_by,
        total: sum(&used).into(),
        groups: groups(&used, names),
    }))
}

/// Days since 1970-01-01 of a period. `now`: epoch seconds.
fn days_of(from: Option<u64>, to: Option<u64>, now: i64) -> ApiResult<Range<i64>> {
    let signed = |at: u64| at.min(LAST_SECOND).cast_signed();
    let to = to.map_or(now, signed);
    let end = to.div_euclid(DAY_SECONDS) + i64::from(to.rem_euclid(DAY_SECONDS) > 0);
    let start = from.map_or(end - DEFAULT_DAYS, |at| signed(at).div_euclid(DAY_SECONDS));
    if start >= end {
        return Err(ApiError::invalid("/from", "must be before `to`"));
    }
    if end - start > MAX_DAYS {
        let message = format!("must be at most {MAX_DAYS} days before `to`");
        return Err(ApiError::invalid("/from", message));
    }
    Ok(start..end)
}

fn sum<'a>(used: impl IntoIterator<Item = &'a UsageOfDay>) -> Sums {
    let sums = used.into_iter().map(Sums::from);
    sums.fold(Sums::default(), Sums::plus)
}

/// Groups in the order of their totals; all others last. `used` is sorted by day.
fn groups(used: &[UsageOfDay], mut names: HashMap<String, String>) -> Vec<UsageGroup> {
    let mut by_group = BTreeMap::<_, Vec<_>>::new();
    for one in used {
        by_group.entry(one.group.as_deref()).or_default().push(one);
    }
    let sums = by_group
        .into_iter()
        .map(|(id, days)| (id, sum(days.iter().copied()), days));
    let mut sorted: Vec<_> = sums.collect();
    sorted.sort_by_key(|(id, Sums { calls, .. }, _)| {
        let tokens = calls.tokens.prompt() + calls.tokens.completion();
        let order = (calls.cost_micros, tokens, calls.calls);
        (id.is_none(), Reverse(order))
    });
    let group = |(id, total, days): (Option<&str>, Sums, Vec<&UsageOfDay>)| UsageGroup {
        id: id.map(str::to_owned),
        name: id.and_then(|id| names.remove(id)),
        total: total.into(),
        days: days.into_iter().map(UsedOnDay::of).collect(),
    };
    sorted.into_iter().map(group).collect()
}

impl UsedOnDay {
    fn of(usage: &UsageOfDay) -> Self {
        Self {
            day: usage.day * DAY_SECONDS,
            used: Sums::from(usage).into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_full_days_within_limits() {
        let day = 86_400;
        let now = 1000 * 86_400 + 5;
        for (from, to, expected) in [
            (None, None, Some(971..1001)),
            (Some(990 * day + 7), None, Some(990..1001)),
            (Some(0), Some(92 * day), Some(0..92)),
            (Some(0), Some(92 * day + 1), None),
            (None, Some(500 * day), Some(470..500)),
            (Some(day), Some(day), None),
            (Some(u64::MAX), None, None),
        ] {
            assert_eq!(days_of(from, to, now).ok(), expected, "{from:?} {to:?}");
        }
        assert!(days_of(None, Some(u64::MAX), now).is_ok());
    }
}
