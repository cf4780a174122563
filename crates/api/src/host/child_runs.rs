//! Child runs: runs of other agents that a run starts and follows.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use domain::child_run::check_child_run;
use domain::run::{Run, is_reserved_code};
use http::StatusCode;
use protocol::child_run::{ChildRun, ChildRunRequest, MOST_WAIT_SECONDS};
use protocol::error::ErrorBody;
use protocol::host_api::RunCancel;
use protocol::id::{AgentId, RunId};
use protocol::run::{AgentRunEvent, Page};
use serde::Deserialize;
use store::CancelOutcome;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::ApiState;
use crate::auth::{Call, LiveCaller, RunCaller};
use crate::error::{ApiError, ApiResult};
use crate::host::runs::{ScopeEventsQuery, check_reason, events_part};
use crate::json::JsonBody;
use crate::query::{PathOf, QueryOf};
use crate::run_pages::{RawPage, page_run_events};
use crate::view::child_run;

/// The routes of child runs.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(start_child_run))
        .routes(routes!(get_child_run))
        .routes(routes!(page_child_run_events))
        .routes(routes!(cancel_child_run))
}

/// How long to wait.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChildWaitQuery {
    /// How long the call waits for the end of the child run, in seconds: 0 (default) to 30.
    #[param(minimum = 0, maximum = 30)]
    wait_seconds: Option<u64>,
}

/// Starts a child run: a run of an agent in `ctx.resources.agents`.
///
/// It is granted what its own agent is granted, and of that only what this run was granted and `grants` names. It has no
/// conversation and asks no person. Its calls count for the budgets of this run, too. It ends with this run, unless that
/// completes with the finish reason `waiting_child`: then a later run of the same agent in the conversation follows it.
/// A run starts 16 child runs at most; a child run at depth 3 starts none.
#[utoipa::path(post, path = "/host/v1/child-runs", tag = "host", security(("run_token" = [])), request_body = ChildRunRequest, responses(
    (status = 202, description = "The child run. The same key and request give the same one", body = ChildRun),
    (status = 400, description = "The request is not valid (`details.pointer`)", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 403, description = "The agent was not granted", body = ErrorBody),
    (status = 409, description = "The run was cancelled, or `details.reason`: idempotency_mismatch, too_many_child_runs, agent_gone", body = ErrorBody),
    (status = 413, description = "A file of the input is too large, or the workspace is full", body = ErrorBody),
    (status = 429, description = "As many runs live as may (`details.reason`)", body = ErrorBody),
    (status = 503, description = "The runner of the agent cannot be called, or the gateway is stopping", body = ErrorBody)))]
pub(crate) async fn start_child_run(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<ChildRunRequest>,
) -> ApiResult<(StatusCode, Json<ChildRun>)> {
    let started = start(&caller, &state, request).await?;
    Ok((StatusCode::ACCEPTED, Json(started)))
}

/// Starts a child run on behalf of any face of the host API.
pub(super) async fn start(
    caller: &RunCaller,
    state: &ApiState,
    request: ChildRunRequest,
) -> ApiResult<ChildRun> {
    let faults = check_child_run(&request);
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let agent_id = request.agent_id.clone();
    let call = Call {
        action: "child_run_start",
        resource: &agent_id,
        operation: "agents",
    };
    let asked = caller.grant.snapshot.agent(&agent_id);
    let agent = caller.granted(state, call, asked).await?;
    let agent: AgentId = agent
        .agent_id
        .parse()
        .map_err(|_| ApiError::not_found("agent"))?;
    let runs = &state.runs;
    let started = runs.start_child(&caller.grant, agent, request, caller.trace_parent);
    let id = started.await?;
    let workspace = &caller.grant.run.workspace;
    let run = runs.store().find_run(workspace, id).await?;
    shown(run)
}

fn shown(run: Option<Run>) -> ApiResult<ChildRun> {
    run.and_then(child_run)
        .ok_or_else(|| ApiError::not_found("child run"))
}

/// A child run that the caller may see. Recorded.
async fn find(
    caller: &RunCaller,
    state: &ApiState,
    action: &'static str,
    id: RunId,
) -> ApiResult<Run> {
    let found = state.runs.find_child(&caller.grant, id).await?;
    let name = id.to_string();
    let call = Call {
        action,
        resource: &name,
        operation: "agents",
    };
    let refusal = found
        .is_none()
        .then_some("no such child run in sight of the run");
    caller.record(state, call, refusal).await?;
    found.ok_or_else(|| ApiError::not_found("child run"))
}

/// Reads a child run, and waits for its end.
///
/// Open are the child runs of this run, and those of earlier runs of its agent in its conversation. The call ends with
/// the child run, or after `wait_seconds`: call again. At most 16 calls of a run wait at a time. Open in the grace of a
/// cancel, too.
#[utoipa::path(get, path = "/host/v1/child-runs/{run_id}", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The child run"), ChildWaitQuery), responses(
    (status = 200, description = "The child run", body = ChildRun),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 404, description = "No such child run in sight of the run", body = ErrorBody),
    (status = 429, description = "As many calls of the run wait as may (`details.reason`: child_run_waits)", body = ErrorBody)))]
pub(crate) async fn get_child_run(
    caller: RunCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<ChildWaitQuery>,
) -> ApiResult<Json<ChildRun>> {
    let wait = query.wait_seconds.unwrap_or(0);
    follow(&caller, &state, id, wait).await.map(Json)
}

/// Reads a child run on behalf of any face of the host API. `wait`: seconds.
pub(super) async fn follow(
    caller: &RunCaller,
    state: &ApiState,
    id: RunId,
    wait: u64,
) -> ApiResult<ChildRun> {
    if wait > MOST_WAIT_SECONDS {
        let message = format!("`wait_seconds` must be 0 to {MOST_WAIT_SECONDS}");
        return Err(ApiError::invalid_argument(message));
    }
    let run = find(caller, state, "child_run_get", id).await?;
    let wait = Duration::from_secs(wait);
    let run = state.runs.await_child(&caller.grant, run, wait).await?;
    let output = run.output.as_ref().map_or(0, |output| output.get().len());
    caller.answer.reserve(output)?;
    shown(Some(run))
}

/// Reads the ledger of a child run.
#[utoipa::path(get, path = "/host/v1/child-runs/{run_id}/events", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The child run"), ScopeEventsQuery), responses(
    (status = 200, description = "A page", body = Page<AgentRunEvent>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 404, description = "No such child run in sight of the run", body = ErrorBody),
    (status = 410, description = "These events are no longer kept", body = ErrorBody)))]
pub(crate) async fn page_child_run_events(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<ScopeEventsQuery>,
) -> ApiResult<Json<RawPage>> {
    let run = find(&caller, &state, "child_run_events_page", id).await?;
    let part = events_part(&query)?;
    page_run_events(&state, &run, &part, &caller.answer).await
}

/// Asks a child run to end. Asking again, or a run that has ended, changes nothing.
#[utoipa::path(post, path = "/host/v1/child-runs/{run_id}/cancel", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The child run")), request_body = RunCancel, responses(
    (status = 200, description = "The child run; the wish is stored, or it has ended", body = ChildRun),
    (status = 400, description = "The reason is not valid", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 404, description = "No such child run in sight of the run", body = ErrorBody)))]
pub(crate) async fn cancel_child_run(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    JsonBody(body): JsonBody<RunCancel>,
) -> ApiResult<Json<ChildRun>> {
    check_reason(&body)?;
    cancel(&caller, &state, id, body.reason).await.map(Json)
}

/// Cancels a child run on behalf of any face of the host API.
pub(super) async fn cancel(
    caller: &RunCaller,
    state: &ApiState,
    id: RunId,
    reason: Option<String>,
) -> ApiResult<ChildRun> {
    let run = find(caller, state, "child_run_cancel", id).await?;
    let reason = reason.filter(|reason| !is_reserved_code(reason));
    match state.runs.cancel(&run.workspace, id, reason).await? {
        CancelOutcome::Requested(run) | CancelOutcome::Ended(run) => shown(Some(*run)),
        CancelOutcome::Unknown => Err(ApiError::not_found("child run")),
    }
}
