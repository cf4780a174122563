//! Child runs: runs of other agents, started by a run.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use domain::child_run::check_child_run;
use domain::run::{Run, is_reserved_code};
use http::StatusCode;
use protocol::child_run::{ChildRun, ChildRunRequest, MAX_WAIT_SECONDS};
use protocol::error::ErrorBody;
use protocol::host_api::RunCancel;
use protocol::id::{AgentId, RunId};
use protocol::run::{AgentRunEvent, Page};
use serde::Deserialize;
use store::{CancelCause, CancelOutcome};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::runs::{ScopeEventsQuery, check_reason, events_range};
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf};
use web::run_pages::{RawPage, page_run_events};
use web::state::ApiState;
use web::view::child_run;

/// Routes of child runs.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(start_child_run))
        .routes(routes!(get_child_run))
        .routes(routes!(page_child_run_events))
        .routes(routes!(cancel_child_run))
}

/// Wait time.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChildWaitQuery {
    /// Maximum wait for the end of the child run, in seconds: 0 (default) to 30.
    #[param(minimum = 0, maximum = 30)]
    wait_seconds: Option<u64>,
}

/// Starts a child run of an agent in `ctx.resources.agents`.
///
/// - **Grants.** The child run gets the intersection of its agent's grants, this run's grants, and `grants`.
/// - **Context.** It has no conversation and cannot ask users.
/// - **Budgets.** Its calls count against the budgets of this run, too.
/// - **End.** It ends with this run. If this run completes with finish reason `waiting_child`, it continues.
///   A later run of the same agent in the conversation can follow it.
/// - **Limits.** A run starts at most 16 child runs. A child run at depth 3 starts none.
///
/// A repeated request with the same idempotency key returns the same child run.
#[utoipa::path(post, path = "/host/v1/child-runs", tag = "host", security(("run_token" = [])), request_body = ChildRunRequest, responses(
    (status = 202, description = "The child run. A repeated request returns the same one", body = ChildRun),
    (status = 400, description = "The request is not valid (`details.pointer`)", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The agent was not granted", body = ErrorBody),
    (status = 409, description = "The run was cancelled, or `details.reason`: idempotency_mismatch, too_many_child_runs, agent_gone", body = ErrorBody),
    (status = 413, description = "A file of the input is too large, or the workspace is full", body = ErrorBody),
    (status = 429, description = "The limit of live runs is reached (`details.reason`)", body = ErrorBody),
    (status = 503, description = "The agent's runner cannot be called, or the gateway is shutting down", body = ErrorBody)))]
pub(crate) async fn start_child_run(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<ChildRunRequest>,
) -> ApiResult<(StatusCode, Json<ChildRun>)> {
    let started = start(&caller, &state, request).await?;
    Ok((StatusCode::ACCEPTED, Json(started)))
}

/// Starts a child run, for all APIs that offer it.
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
    let call = AuditedCall {
        action: "child_run_start",
        resource: &agent_id,
        operation: "agents",
    };
    let permission = caller.grant.snapshot.agent(&agent_id);
    let agent = caller.granted(state, call, permission).await?;
    // The snapshot is data from the store: its id may be unreadable.
    let agent: AgentId = agent
        .agent_id
        .parse()
        .map_err(|_| ApiError::not_found("agent", &agent_id))?;
    let runs = &state.runs;
    let started = runs
        .children
        .start_child(&caller.grant, agent, request, caller.trace_parent);
    let id = started.await?;
    let workspace = &caller.grant.run.workspace;
    // Read from the store: a repeated request gets a run that may have ended.
    let run = runs.store().runs().find_run(workspace, id).await?;
    shown(id, run)
}

fn shown(id: RunId, run: Option<Run>) -> ApiResult<ChildRun> {
    run.and_then(child_run)
        .ok_or_else(|| ApiError::not_found("child run", id))
}

/// Finds a visible child run and audits the access.
async fn find(
    caller: &RunCaller,
    state: &ApiState,
    action: &'static str,
    id: RunId,
) -> ApiResult<Run> {
    // Looked up before the audit: the entry records if the run was visible.
    let found = state.runs.children.find_child(&caller.grant, id).await?;
    let name = id.to_string();
    let call = AuditedCall {
        action,
        resource: &name,
        operation: "agents",
    };
    let refusal = found
        .is_none()
        .then_some("no such child run is visible to this run");
    caller.record(state, call, refusal).await?;
    found.ok_or_else(|| ApiError::not_found("child run", id))
}

/// Retrieves a child run and waits for its end.
///
/// A run sees its own child runs, and those of earlier runs of its agent in its conversation. The response
/// arrives at the end of the child run or after `wait_seconds`; then call again. At most 16 calls of a run wait
/// at a time. A cancelled run may call this during its grace period.
#[utoipa::path(get, path = "/host/v1/child-runs/{run_id}", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The child run"), ChildWaitQuery), responses(
    (status = 200, description = "The child run", body = ChildRun),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "No such child run is visible to this run", body = ErrorBody),
    (status = 429, description = "The run's limit of waiting calls is reached (`details.reason`: child_run_waits)", body = ErrorBody)))]
pub(crate) async fn get_child_run(
    caller: RunCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<ChildWaitQuery>,
) -> ApiResult<Json<ChildRun>> {
    let wait = query.wait_seconds.unwrap_or(0);
    follow(&caller, &state, id, wait).await.map(Json)
}

/// Retrieves a child run, for all APIs that offer it. `wait` is in seconds.
pub(super) async fn follow(
    caller: &RunCaller,
    state: &ApiState,
    id: RunId,
    wait: u64,
) -> ApiResult<ChildRun> {
    if wait > MAX_WAIT_SECONDS {
        let message = format!("`wait_seconds` must be 0 to {MAX_WAIT_SECONDS}");
        return Err(ApiError::invalid_argument(message));
    }
    let run = find(caller, state, "child_run_get", id).await?;
    let wait = Duration::from_secs(wait);
    let run = state
        .runs
        .children
        .await_child(&caller.grant, run, wait)
        .await?;
    // Reserved after the wait, so that waiting calls hold no memory.
    let output = run.output.as_ref().map_or(0, |output| output.get().len());
    caller.answer.reserve(output)?;
    shown(id, Some(run))
}

/// Lists the ledger events of a child run.
#[utoipa::path(get, path = "/host/v1/child-runs/{run_id}/events", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The child run"), ScopeEventsQuery), responses(
    (status = 200, description = "A page", body = Page<AgentRunEvent>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "No such child run is visible to this run", body = ErrorBody),
    (status = 410, description = "Retention has deleted these events", body = ErrorBody)))]
pub(crate) async fn page_child_run_events(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<ScopeEventsQuery>,
) -> ApiResult<Json<RawPage>> {
    let run = find(&caller, &state, "child_run_events_page", id).await?;
    let part = events_range(&query)?;
    page_run_events(&state, &run, &part, &caller.answer).await
}

/// Cancels a child run.
///
/// Repeated requests, and requests after its end, have no effect.
#[utoipa::path(post, path = "/host/v1/child-runs/{run_id}/cancel", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The child run")), request_body = RunCancel, responses(
    (status = 200, description = "The child run; its cancellation is requested, or it has ended", body = ChildRun),
    (status = 400, description = "The reason is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "No such child run is visible to this run", body = ErrorBody)))]
pub(crate) async fn cancel_child_run(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    JsonBody(body): JsonBody<RunCancel>,
) -> ApiResult<Json<ChildRun>> {
    check_reason(&body)?;
    cancel(&caller, &state, id, body.reason).await.map(Json)
}

/// Cancels a child run, for all APIs that offer it.
pub(super) async fn cancel(
    caller: &RunCaller,
    state: &ApiState,
    id: RunId,
    reason: Option<String>,
) -> ApiResult<ChildRun> {
    let run = find(caller, state, "child_run_cancel", id).await?;
    // Codes of the gateway's own causes; a runner must not pretend one of them.
    let request = CancelCause {
        by: caller.grant.run.id.into(),
        reason: reason.filter(|reason| !is_reserved_code(reason)),
    };
    match state
        .runs
        .cancellation
        .cancel(&run.workspace, id, request)
        .await?
    {
        CancelOutcome::Requested(run) | CancelOutcome::Ended(run) => shown(id, Some(*run)),
        CancelOutcome::Unknown => Err(ApiError::not_found("child run", id)),
    }
}
