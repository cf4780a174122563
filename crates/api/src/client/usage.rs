//! Use of a run: calls, tokens, cost and time by model, tool and knowledge base.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::id::RunId;
use serde::Serialize;
use store::UsageOfRun;

use crate::auth::ScopedCaller;
use crate::error::ApiResult;
use crate::host_call::micros;
use crate::query::PathOf;
use crate::state::ApiState;

/// Use of a run so far, without calls in progress.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunUsage {
    /// Sum over all resources.
    total: Used,
    /// Use by model, tool and knowledge base.
    items: Vec<UsedResource>,
}

/// Counts and sums of calls.
#[derive(Clone, Copy, Default, Serialize, utoipa::ToSchema)]
pub(crate) struct Used {
    calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    /// In the currency of the configured prices.
    cost: f64,
    /// Sum of the calls' durations.
    seconds: f64,
}

#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct UsedResource {
    /// `model`, `tool` or `knowledge`.
    kind: String,
    /// Id of the model or knowledge base, or name of the tool.
    resource: String,
    #[serde(flatten)]
    used: Used,
    /// Number of calls with estimated tokens, because the provider sent no count.
    estimated_calls: u64,
}

impl Used {
    fn of(usage: &UsageOfRun) -> Self {
        Self {
            calls: usage.calls,
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cost: micros(usage.cost_micros),
            seconds: micros(usage.wall_ms.saturating_mul(1000)),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            prompt_tokens: self.prompt_tokens + other.prompt_tokens,
            completion_tokens: self.completion_tokens + other.completion_tokens,
            cost: self.cost + other.cost,
            seconds: self.seconds + other.seconds,
        }
    }
}

/// Retrieves a run's use of models, tools and knowledge bases.
#[utoipa::path(get, path = "/v1/runs/{run_id}/usage", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 200, description = "The use so far", body = RunUsage),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn get_run_usage(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<Json<RunUsage>> {
    let store = state.runs.store();
    let run = caller.find_run(&state, id).await?;
    let usage = store.usage().usage_of_run(run.id).await?;
    let total = usage.iter().map(Used::of).fold(Used::default(), Used::plus);
    let items = usage
        .into_iter()
        .map(|usage| UsedResource {
            used: Used::of(&usage),
            estimated_calls: usage.estimated_calls,
            kind: usage.kind,
            resource: usage.resource,
        })
        .collect();
    Ok(Json(RunUsage { total, items }))
}
