//! Use of a run: calls, tokens, cost and time by model, tool and knowledge base.

use axum::Json;
use axum::extract::State;
use domain::usage::TokenParts;
use protocol::error::ErrorBody;
use protocol::id::RunId;
use serde::Serialize;
use store::UsageOfRun;

use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::query::PathOf;
use web::state::ApiState;
use web::view::micros;

/// Use of a run so far, without calls in progress.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunUsage {
    /// Sum over all resources.
    total: Used,
    /// Use by model, tool and knowledge base.
    items: Vec<UsedResource>,
}

/// Counts and sums of calls.
#[derive(Clone, Copy, Serialize, utoipa::ToSchema)]
pub(crate) struct Used {
    calls: u64,
    prompt_tokens: u64,
    completion_tokens: u64,
    /// The same tokens by price.
    tokens: TokensByPrice,
    /// In the currency of the configured prices.
    cost: f64,
    /// Sum of the calls' durations.
    seconds: f64,
}

/// Disjoint token counts. The first four sum to the prompt, the last two to the completion.
#[derive(Clone, Copy, Serialize, utoipa::ToSchema)]
pub(crate) struct TokensByPrice {
    /// Prompt tokens that the provider's cache neither served nor stored.
    input: u64,
    /// Prompt tokens that the cache served.
    cache_read: u64,
    /// Prompt tokens that the cache stored for five minutes, or for an unknown time.
    cache_write_5m: u64,
    /// Prompt tokens that the cache stored for an hour.
    cache_write_1h: u64,
    /// Completion tokens without reasoning.
    output: u64,
    reasoning: u64,
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

/// Sums in integers. They are converted once: sums of floats would show rounding errors.
#[derive(Clone, Copy, Default)]
pub(super) struct CallSums {
    pub(super) calls: u64,
    pub(super) tokens: TokenParts,
    pub(super) cost_micros: u64,
    pub(super) wall_ms: u64,
}

impl CallSums {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            calls: self.calls + other.calls,
            tokens: self.tokens.plus(other.tokens),
            cost_micros: self.cost_micros + other.cost_micros,
            wall_ms: self.wall_ms + other.wall_ms,
        }
    }
}

impl From<&UsageOfRun> for CallSums {
    fn from(usage: &UsageOfRun) -> Self {
        Self {
            calls: usage.calls,
            tokens: usage.tokens,
            cost_micros: usage.cost_micros,
            wall_ms: usage.wall_ms,
        }
    }
}

impl From<CallSums> for Used {
    fn from(sums: CallSums) -> Self {
        Self {
            calls: sums.calls,
            prompt_tokens: sums.tokens.prompt(),
            completion_tokens: sums.tokens.completion(),
            tokens: sums.tokens.into(),
            cost: micros(sums.cost_micros),
            seconds: micros(sums.wall_ms.saturating_mul(1000)),
        }
    }
}

impl From<TokenParts> for TokensByPrice {
    fn from(parts: TokenParts) -> Self {
        Self {
            input: parts.input,
            cache_read: parts.cache_read,
            cache_write_5m: parts.cache_write_5m,
            cache_write_1h: parts.cache_write_1h,
            output: parts.output,
            reasoning: parts.reasoning,
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
    let sums = usage.iter().map(CallSums::from);
    let total = sums.fold(CallSums::default(), CallSums::plus).into();
    let items = usage
        .into_iter()
        .map(|usage| UsedResource {
            used: CallSums::from(&usage).into(),
            estimated_calls: usage.estimated_calls,
            kind: usage.kind,
            resource: usage.resource,
        })
        .collect();
    Ok(Json(RunUsage { total, items }))
}
