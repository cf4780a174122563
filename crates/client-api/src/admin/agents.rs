//! Agents: create, list, replace and delete (`docs/agents.md`).

use axum::Json;
use axum::extract::State;
use domain::agent::{check_agent, check_agent_for};
use domain::redaction::redact_config;
use http::{HeaderMap, StatusCode};
use protocol::admin::{Agent, AgentSpec, Fault};
use protocol::api_key::KeyRole;
use protocol::error::ErrorBody;
use protocol::id::{AgentId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::run::Page;
use store::{AgentRecord, SaveAgent, SavedAgent, StoreError};
use uuid::Uuid;

use crate::admin::endpoints::{NameQuery, name_page, to_page};
use crate::principals::name_keys;
use web::auth::AdminCaller;
use web::error::version::{read_only, version_conflict};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, if_match};
use web::state::ApiState;

fn view(record: AgentRecord) -> Agent {
    Agent {
        id: record.id,
        origin: record.origin,
        version: record.version,
        created_at: record.created_at.div_euclid(1000),
        updated_at: record.updated_at.div_euclid(1000),
        updated_by: record.updated_by,
        refused: record.refused,
        spec: record.spec,
    }
}

/// The agent for a reader of this role, without the name of its key.
fn shown(record: AgentRecord, role: KeyRole) -> Agent {
    let mut agent = view(record);
    if role != KeyRole::Admin {
        redact_config(&mut agent.spec.config);
    }
    agent
}

async fn name_updaters(
    state: &ApiState,
    caller: &AdminCaller,
    agents: &mut [Agent],
) -> Result<(), StoreError> {
    let principals = agents
        .iter_mut()
        .filter_map(|agent| agent.updated_by.as_mut());
    name_keys(state, &caller.workspace, caller.role, principals.collect()).await
}

pub(super) async fn check(
    state: &ApiState,
    workspace: &WorkspaceId,
    spec: &AgentSpec,
) -> ApiResult<()> {
    let mut faults = check_agent(spec);
    // A disabled agent needs no runner, so it can be saved even if its runner is gone.
    let runner_faults = if spec.enabled {
        runner_faults(state, workspace, spec).await?
    } else {
        Vec::new()
    };
    faults.extend(runner_faults);
    if faults.is_empty() {
        Ok(())
    } else {
        Err(ApiError::faults(&faults))
    }
}

/// Faults of the specification against its runner's manifest.
async fn runner_faults(
    state: &ApiState,
    workspace: &WorkspaceId,
    spec: &AgentSpec,
) -> Result<Vec<Fault>, StoreError> {
    let runner = state
        .runs
        .store()
        .endpoints()
        .find_runner(workspace, &spec.runner_id)
        .await?;
    Ok(match runner {
        None => {
            let message = "is served by no registered endpoint; register its endpoint first";
            vec![Fault::new("/runner_id", message)]
        }
        Some(runner) if !runner.is_bindable() => {
            let (status, reason) = (runner.status.as_str(), runner.reason.unwrap_or_default());
            vec![Fault::new("/runner_id", format!("is {status}: {reason}"))]
        }
        Some(runner) => {
            let manifest: AgentRunnerManifest =
                // Discovery stores only valid manifests, so this is damage and no fault of the caller.
                serde_json::from_str(&runner.manifest).map_err(|_| StoreError::Corrupt {
                    column: "runners.manifest",
                    row: runner.id.to_string(),
                })?;
            check_agent_for(spec, &manifest)
        }
    })
}

pub(super) async fn save(
    state: &ApiState,
    caller: &AdminCaller,
    id: AgentId,
    change: SaveAgent,
) -> ApiResult<Option<Agent>> {
    let saved = state
        .runs
        .store()
        .change(caller.stamp(state), change)
        .await
        .map_err(|error| match error {
            // The unique index decides: two agents of one name may be created at the same time.
            StoreError::Taken => ApiError::conflict("name_taken", "an agent of this name exists"),
            error => error.into(),
        })?;
    match saved {
        SavedAgent::Saved(record) => {
            let mut agent = view(*record);
            name_updaters(state, caller, std::slice::from_mut(&mut agent)).await?;
            Ok(Some(agent))
        }
        SavedAgent::Done => Ok(None),
        SavedAgent::Unknown => Err(ApiError::not_found("agent", id)),
        SavedAgent::ReadOnly => Err(read_only()),
        SavedAgent::Mismatch(version) => Err(version_conflict(version)),
    }
}

/// Creates an agent.
///
/// The runner's `config_schema` validates its config.
#[utoipa::path(post, path = "/v1/agents", tag = "admin", security(("api_key" = [])),
    request_body = AgentSpec, responses(
    (status = 201, description = "Created", body = Agent),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "The name is taken", body = ErrorBody)))]
pub(crate) async fn create_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    JsonBody(spec): JsonBody<AgentSpec>,
) -> ApiResult<(StatusCode, Json<Agent>)> {
    check(&state, &caller.workspace, &spec).await?;
    let at = state.runs.clock().now_ms();
    let id = AgentId(Uuid::now_v7());
    let create = SaveAgent::Create {
        id,
        workspace: caller.workspace.clone(),
        spec,
        by: caller.key.into(),
        at,
    };
    let agent = save(&state, &caller, id, create)
        .await?
        .ok_or_else(|| ApiError::not_found("agent", id))?;
    Ok((StatusCode::CREATED, Json(agent)))
}

/// Lists the agents.
///
/// For keys of other roles than admin, texts in `config` under names with secret, token, key, password, credential or
/// authorization are `***`.
#[utoipa::path(get, path = "/v1/agents", tag = "admin", security(("api_key" = [])), params(NameQuery), responses(
    (status = 200, description = "A page sorted by name", body = Page<Agent>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_agents(
    caller: AdminCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<NameQuery>,
) -> ApiResult<Json<Page<Agent>>> {
    let workspace = &caller.workspace;
    let (after, limit) = name_page(&state, "agents", workspace, query.cursor, query.limit)?;
    let mut found = state
        .runs
        .store()
        .agents()
        .list_agents(workspace, after.as_deref(), caller.answer.page(limit))
        .await?
        .map(|record| shown(record, caller.role));
    name_updaters(&state, &caller, &mut found.items).await?;
    Ok(Json(to_page(
        &state,
        "agents",
        workspace,
        found,
        |item: &Agent| item.spec.name.clone(),
    )))
}

/// Retrieves an agent.
///
/// For keys of other roles than admin, `config` is redacted as in `GET /v1/agents`.
#[utoipa::path(get, path = "/v1/agents/{agent_id}", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent")), responses(
    (status = 200, description = "The agent", body = Agent),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody)))]
pub(crate) async fn get_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
) -> ApiResult<Json<Agent>> {
    let record = state
        .runs
        .store()
        .agents()
        .find_agent(&caller.workspace, id)
        .await?;
    let record = record.ok_or_else(|| ApiError::not_found("agent", id))?;
    let mut agent = shown(record, caller.role);
    name_updaters(&state, &caller, std::slice::from_mut(&mut agent)).await?;
    Ok(Json(agent))
}

/// Replaces an agent.
///
/// Live runs keep their grants. With `If-Match` the update applies to that version only.
#[utoipa::path(put, path = "/v1/agents/{agent_id}", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")),
    request_body = AgentSpec, responses(
    (status = 200, description = "Changed", body = Agent),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody),
    (status = 409, description = "The version does not match, or the agent is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn update_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
    headers: HeaderMap,
    JsonBody(spec): JsonBody<AgentSpec>,
) -> ApiResult<Json<Agent>> {
    check(&state, &caller.workspace, &spec).await?;
    let if_match = if_match(&headers)?;
    let at = state.runs.clock().now_ms();
    let update = SaveAgent::Update {
        id,
        workspace: caller.workspace.clone(),
        spec,
        if_match,
        by: caller.key.into(),
        at,
    };
    save(&state, &caller, id, update)
        .await?
        .map(Json)
        .ok_or_else(|| ApiError::not_found("agent", id))
}

/// Deletes an agent. The ledger keeps its runs.
#[utoipa::path(delete, path = "/v1/agents/{agent_id}", tag = "admin", security(("api_key" = [])),
    params(("agent_id" = String, Path, description = "The agent"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent", body = ErrorBody),
    (status = 409, description = "The version does not match, or the agent is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn delete_agent(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<AgentId>,
    headers: HeaderMap,
) -> ApiResult<StatusCode> {
    let if_match = if_match(&headers)?;
    let delete = SaveAgent::Delete {
        id,
        workspace: caller.workspace.clone(),
        if_match,
    };
    save(&state, &caller, id, delete).await?;
    Ok(StatusCode::NO_CONTENT)
}
