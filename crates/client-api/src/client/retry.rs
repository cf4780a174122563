//! Retry of ended runs.

use axum::Json;
use axum::extract::State;
use http::header::{HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::id::RunId;
use protocol::run::AgentRun;
use serde::Deserialize;

use super::events::REPLAYED;
use super::runs::view;
use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::json::OptionalJsonBody;
use web::query::{PathOf, trace_header};
use web::state::ApiState;

/// Request to retry a run. No body: from the event.
#[derive(Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RetryRequest {
    /// Sequence of the result in the run's ledger after which the new run begins. Not that of a `message.delta`, of an
    /// event of the gateway, or of the end. The results up to it are at most 1000, with 256 KiB in total. Default: the
    /// new run begins with the event.
    #[schema(minimum = 1)]
    from: Option<u64>,
}

/// Runs the event of an ended run again.
///
/// The run must have failed, been cancelled or exceeded its deadline. The gateway decides the event anew, with
/// the agents and permissions of now, and creates a new run with `retry_of`. The conversation keeps the event's
/// message once. Events that the ended run had pulled do not run again. A run is retried at most once: a
/// repeated request has status 200 and returns the same new run. If that one fails too, retry it.
///
/// With `from` the new run begins after a result of the ended one: its context has the results up to it, and tool
/// calls that the ended run made before it are answered from the record. The runner must have the capability
/// `resumable`, and the run goes to the agent of the ended one.
#[utoipa::path(post, path = "/v1/runs/{run_id}/retry", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The ended run")), request_body = Option<RetryRequest>, responses(
    (status = 202, description = "The new run", body = AgentRun,
        headers(("Location" = String, description = "URL of the new run; stream it at `{Location}/stream`"))),
    (status = 200, description = "The run of an earlier retry", body = AgentRun,
        headers(("Location" = String, description = "URL of that run"),
            ("Idempotent-Replayed" = String, description = "`true`"))),
    (status = 400, description = "`from` names no complete result of the run, or too many; or the runner is not resumable (`details.reason`: not_resumable)", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents, and the event now goes to none of them (`details.reason`: key_agents)", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody),
    (status = 409, description = "`details.reason`: run_live, run_completed, child_run (retry `details.parent_run_id`), no_agent, agent_gone, runner_changed, already_retried (from another result, as `details.run_id`), binding_conflict, run_active", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: queue_full, workspace_runs, endpoint_runs, workspace_events, key_rate, key_runs, agent_rate, agent_runs. Retry after `Retry-After` seconds", body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn retry_run(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    request: HeaderMap,
    OptionalJsonBody(body): OptionalJsonBody<RetryRequest>,
) -> ApiResult<(StatusCode, HeaderMap, Json<AgentRun>)> {
    let trace = trace_header(&request);
    let run = caller.find_run(&state, id).await?;
    let from = body.and_then(|body| body.from);
    let retried = state
        .runs
        .intake
        .retry(caller.sender(), run.id, from, trace);
    let retried = retried.await?;
    let run = caller.find_run(&state, retried.run_id).await?;
    // Relative: a proxy may serve the gateway under another host.
    let url = HeaderValue::try_from(format!("/v1/runs/{}", retried.run_id));
    let mut headers: HeaderMap = url.into_iter().map(|url| (LOCATION, url)).collect();
    let status = if retried.replayed {
        headers.insert(REPLAYED, HeaderValue::from_static("true"));
        StatusCode::OK
    } else {
        StatusCode::ACCEPTED
    };
    Ok((status, headers, Json(view(&state, caller.role, run).await?)))
}
