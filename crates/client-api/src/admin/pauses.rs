//! Pauses: hold, freeze or stop the runs of an agent, of a workspace or of all workspaces.

use std::collections::HashMap;

use axum::Json;
use axum::extract::State;
use protocol::api_key::KeyRole;
use protocol::error::ErrorBody;
use protocol::id::{AgentId, WorkspaceId};
use protocol::pause::{
    DEFAULT_RUNS_PER_SECOND, Pause, PauseList, PauseRequest, PauseTarget, ResumePauseRequest,
};
use store::{ApiKeyRecord, ChangeStamp, MAX_PAUSES, PauseRecord, PauseScope};

use web::auth::{AdminCaller, KeyCaller, OwnerCaller};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::PathOf;
use web::state::ApiState;

/// Lists the pauses that hold runs of the workspace.
///
/// Open to keys of role owner, too: they list the pauses of all workspaces, without those of agents.
#[utoipa::path(get, path = "/v1/pauses", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items", body = PauseList),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_pauses(
    KeyCaller { record: caller, .. }: KeyCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<PauseList>> {
    let pauses = state.runs.store().agents();
    let found = pauses.all_pauses().await?;
    if caller.role == KeyRole::Owner {
        let of_workspaces = found.iter().filter(|pause| pause.scope.agent().is_none());
        let items = of_workspaces.map(|pause| view(pause, None)).collect();
        return Ok(Json(PauseList { items }));
    }
    let workspace = workspace_of(caller)?;
    let is_own = |pause: &&PauseRecord| {
        let of = pause.scope.workspace();
        of.is_none_or(|of| *of == workspace)
    };
    let own: Vec<_> = found.iter().filter(is_own).collect();
    let held = if own.is_empty() {
        HashMap::new()
    } else {
        pauses.count_held(&workspace).await?
    };
    let items = own.into_iter().map(|pause| view(pause, Some(&held)));
    let items = items.collect();
    Ok(Json(PauseList { items }))
}

/// Pauses an agent.
///
/// A repeated request replaces mode and reason.
#[utoipa::path(post, path = "/v1/agents/{agent_id}/pause", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent")), request_body = PauseRequest, responses(
    (status = 200, description = "The pause. No run of the agent is dispatched from now on", body = Pause),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody),
    (status = 409, description = "`too_many_pauses`: end others first, or pause the workspace", body = ErrorBody)))]
pub(crate) async fn pause_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(agent): PathOf<AgentId>,
    JsonBody(request): JsonBody<PauseRequest>,
) -> ApiResult<Json<Pause>> {
    let agents = state.runs.store().agents();
    let found = agents.find_agent(&caller.workspace, agent).await?;
    let found = found.ok_or_else(|| ApiError::not_found("agent", agent))?;
    let workspace = found.workspace;
    let scope = PauseScope::Agent { workspace, agent };
    pause(&state, caller.stamp(&state), scope, request).await
}

/// Ends the pause of an agent. Held runs are dispatched at a rate.
#[utoipa::path(post, path = "/v1/agents/{agent_id}/resume", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent")), request_body = ResumePauseRequest, responses(
    (status = 200, description = "The pause, which ends with its last held run", body = Pause),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "The agent is not paused", body = ErrorBody)))]
pub(crate) async fn resume_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(agent): PathOf<AgentId>,
    JsonBody(request): JsonBody<ResumePauseRequest>,
) -> ApiResult<Json<Pause>> {
    // A deleted agent may still be paused.
    let own = |pause: &PauseRecord| {
        pause.scope.agent() == Some(agent) && pause.scope.workspace() == Some(&caller.workspace)
    };
    let pauses = state.runs.store().agents().all_pauses().await?;
    let found = pauses.into_iter().find(own);
    let found = found.ok_or_else(|| not_paused("agent", agent))?;
    let stamp = caller.stamp(&state);
    let absent = || not_paused("agent", agent);
    resume(&state, stamp, found.scope, request, absent).await
}

/// Pauses a workspace: the caller's own, or with a key of role owner any.
///
/// A repeated request replaces mode and reason.
#[utoipa::path(post, path = "/v1/workspaces/{workspace_id}/pause", tag = "admin", security(("api_key" = [])),
    params(("workspace_id" = String, Path, description = "The workspace")), request_body = PauseRequest, responses(
    (status = 200, description = "The pause. No run of the workspace is dispatched from now on", body = Pause),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role admin or owner", body = ErrorBody),
    (status = 404, description = "No such workspace", body = ErrorBody),
    (status = 409, description = "`too_many_pauses`: end others first, or pause all", body = ErrorBody)))]
pub(crate) async fn pause_workspace(
    KeyCaller {
        record: caller,
        request: id,
    }: KeyCaller,
    State(state): State<ApiState>,
    PathOf(workspace): PathOf<String>,
    JsonBody(request): JsonBody<PauseRequest>,
) -> ApiResult<Json<Pause>> {
    let stamp = id.stamp(&state, caller.id);
    let scope = workspace_scope(&state, caller, workspace).await?;
    pause(&state, stamp, scope, request).await
}

/// Ends the pause of a workspace. Held runs are dispatched at a rate.
#[utoipa::path(post, path = "/v1/workspaces/{workspace_id}/resume", tag = "admin", security(("api_key" = [])),
    params(("workspace_id" = String, Path, description = "The workspace")), request_body = ResumePauseRequest,
    responses(
    (status = 200, description = "The pause, which ends with its last held run", body = Pause),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role admin or owner", body = ErrorBody),
    (status = 404, description = "No such workspace, or it is not paused", body = ErrorBody)))]
pub(crate) async fn resume_workspace(
    KeyCaller {
        record: caller,
        request: id,
    }: KeyCaller,
    State(state): State<ApiState>,
    PathOf(workspace): PathOf<String>,
    JsonBody(request): JsonBody<ResumePauseRequest>,
) -> ApiResult<Json<Pause>> {
    let stamp = id.stamp(&state, caller.id);
    let scope = workspace_scope(&state, caller, workspace.clone()).await?;
    let absent = || not_paused("workspace", &workspace);
    resume(&state, stamp, scope, request, absent).await
}

/// Pauses the runs of all workspaces.
///
/// A repeated request replaces mode and reason.
#[utoipa::path(post, path = "/v1/pause", tag = "owner", security(("api_key" = [])), request_body = PauseRequest,
    responses(
    (status = 200, description = "The pause. No run is dispatched from now on", body = Pause),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role owner", body = ErrorBody),
    (status = 409, description = "`too_many_pauses`: end others first", body = ErrorBody)))]
pub(crate) async fn pause_all(
    caller: OwnerCaller,
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<PauseRequest>,
) -> ApiResult<Json<Pause>> {
    pause(&state, caller.stamp(&state), PauseScope::All, request).await
}

/// Ends the pause of all workspaces. Held runs are dispatched at a rate. Pauses of workspaces and agents stay.
#[utoipa::path(post, path = "/v1/resume", tag = "owner", security(("api_key" = [])),
    request_body = ResumePauseRequest, responses(
    (status = 200, description = "The pause, which ends with its last held run", body = Pause),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The caller's key is not of role owner", body = ErrorBody),
    (status = 404, description = "There is no pause of all", body = ErrorBody)))]
pub(crate) async fn resume_all(
    caller: OwnerCaller,
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<ResumePauseRequest>,
) -> ApiResult<Json<Pause>> {
    let stamp = caller.stamp(&state);
    let absent = || ApiError::not_found("pause of", "all");
    resume(&state, stamp, PauseScope::All, request, absent).await
}

async fn pause(
    state: &ApiState,
    stamp: ChangeStamp,
    scope: PauseScope,
    request: PauseRequest,
) -> ApiResult<Json<Pause>> {
    if let Some((pointer, message)) = request.fault() {
        return Err(ApiError::invalid(pointer, message));
    }
    let record = PauseRecord {
        scope,
        mode: request.mode,
        reason: request.reason,
        paused_by: stamp.by.clone(),
        paused_at: stamp.at,
        runs_per_second: None,
        released_through: 0,
    };
    let by = stamp.by.stored();
    if !state.runs.pauses.pause(record.clone(), stamp).await? {
        let message = format!("there are {MAX_PAUSES} pauses; end others, or pause a wider scope");
        return Err(ApiError::conflict("too_many_pauses", message));
    }
    let mode = record.mode.as_str();
    tracing::warn!(pause.mode = mode, pause.scope = ?record.scope, by, "an operator has paused runs: {mode}");
    Ok(Json(view(&record, None)))
}

async fn resume(
    state: &ApiState,
    stamp: ChangeStamp,
    scope: PauseScope,
    request: ResumePauseRequest,
    absent: impl Fn() -> ApiError,
) -> ApiResult<Json<Pause>> {
    if let Some((pointer, message)) = request.fault() {
        return Err(ApiError::invalid(pointer, message));
    }
    let rate = request.runs_per_second.unwrap_or(DEFAULT_RUNS_PER_SECOND);
    let resumed = state.runs.pauses.resume(scope, rate, stamp).await?;
    let resumed = resumed.ok_or_else(absent)?;
    tracing::warn!(
        pause.scope = ?resumed.scope, runs_per_second = rate,
        "an operator has ended a pause; its held runs are dispatched"
    );
    Ok(Json(view(&resumed, None)))
}

fn not_paused(kind: &str, id: impl std::fmt::Display) -> ApiError {
    ApiError::not_found("pause of", format!("{kind} {id}"))
}

/// The workspace of an operator. Fails for keys of role client and restricted ones.
fn workspace_of(caller: ApiKeyRecord) -> ApiResult<WorkspaceId> {
    match caller.role {
        KeyRole::Admin | KeyRole::Operator | KeyRole::Viewer => Ok(caller.workspace),
        KeyRole::Owner | KeyRole::Approver | KeyRole::Client => {
            let message = "this route needs an API key of role admin or owner";
            Err(ApiError::unauthorized(message))
        }
    }
}

/// The scope of a workspace that the caller may pause. Another workspace looks like an absent one.
async fn workspace_scope(
    state: &ApiState,
    caller: ApiKeyRecord,
    id: String,
) -> ApiResult<PauseScope> {
    let is_open = if caller.role == KeyRole::Owner {
        let access = state.runs.store().access();
        access.find_workspace(&id).await?.is_some()
    } else {
        workspace_of(caller)?.as_str() == id
    };
    if is_open {
        Ok(PauseScope::Workspace(WorkspaceId(id)))
    } else {
        Err(ApiError::not_found("workspace", id))
    }
}

/// `held`: held runs of the caller's workspace by agent.
fn view(record: &PauseRecord, held: Option<&HashMap<AgentId, u64>>) -> Pause {
    let (target, agent_id) = match &record.scope {
        PauseScope::All => (PauseTarget::All, None),
        PauseScope::Workspace(_) => (PauseTarget::Workspace, None),
        PauseScope::Agent { agent, .. } => (PauseTarget::Agent, Some(*agent)),
    };
    let count = |held: &HashMap<AgentId, u64>| match agent_id {
        Some(agent) => held.get(&agent).copied().unwrap_or(0),
        None => held.values().sum(),
    };
    Pause {
        target,
        workspace_id: record.scope.workspace().map(ToString::to_string),
        agent_id,
        mode: record.mode,
        reason: record.reason.clone(),
        runs_per_second: record.runs_per_second,
        paused_by: record.paused_by.clone(),
        paused_at: record.paused_at.div_euclid(1000),
        held_runs: held.map(count),
    }
}
