//! Retry of ended runs.

use axum::Json;
use axum::extract::State;
use http::header::{HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::id::RunId;
use protocol::run::AgentRun;

use super::events::REPLAYED;
use super::runs::view;
use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::query::{PathOf, trace_header};
use web::state::ApiState;

/// Runs the event of an ended run again.
///
/// The run must have failed, been cancelled or exceeded its deadline. The gateway decides the event anew, with
/// the agents and permissions of now, and creates a new run with `retry_of`. The conversation keeps the event's
/// message once. Events that the ended run had pulled do not run again. A run is retried at most once: a
/// repeated request has status 200 and returns the same new run. If that one fails too, retry it.
#[utoipa::path(post, path = "/v1/runs/{run_id}/retry", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The ended run")), responses(
    (status = 202, description = "The new run", body = AgentRun,
        headers(("Location" = String, description = "URL of the new run; stream it at `{Location}/stream`"))),
    (status = 200, description = "The run of an earlier retry", body = AgentRun,
        headers(("Location" = String, description = "URL of that run"),
            ("Idempotent-Replayed" = String, description = "`true`"))),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents, and the event now goes to none of them (`details.reason`: key_agents)", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody),
    (status = 409, description = "`details.reason`: run_live, run_completed, child_run (retry `details.parent_run_id`), no_agent, agent_gone, binding_conflict, run_active", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: queue_full, workspace_runs, endpoint_runs, workspace_events. Retry after `Retry-After` seconds", body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn retry_run(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    request: HeaderMap,
) -> ApiResult<(StatusCode, HeaderMap, Json<AgentRun>)> {
    let trace = trace_header(&request);
    let run = caller.find_run(&state, id).await?;
    let retried = state.runs.intake.retry(caller.sender(), run.id, trace);
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
