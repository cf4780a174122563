//! Approvals of tool calls (`docs/approvals.md`).

use axum::Json;
use axum::extract::State;
use domain::approval::{DEFAULT_SECONDS, check_approval};
use http::StatusCode;
use protocol::api_key::KeyRole;
use protocol::approval::{Approval, ApprovalScope, ApprovalSpec};
use protocol::error::ErrorBody;
use protocol::id::{AgentId, ApprovalId, RunId, WorkspaceId};
use protocol::run::Page;
use store::{ApprovalRecord, CoveredCalls, CreateApproval, ListPage, RevokeApproval};
use uuid::Uuid;

use crate::admin::endpoints::{NameQuery, name_page, to_page};
use crate::principals::name_keys;
use web::auth::AdminCaller;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf};
use web::state::ApiState;

fn seconds(at: i64) -> i64 {
    at.div_euclid(1000)
}

/// Approvals as a reader of this role sees them.
pub(crate) async fn approval_views(
    state: &ApiState,
    workspace: &WorkspaceId,
    reader: KeyRole,
    records: Vec<ApprovalRecord>,
) -> ApiResult<Vec<Approval>> {
    let now = state.runs.clock().now_ms();
    let records = records.into_iter();
    let mut approvals: Vec<_> = records.map(|record| view(record, now)).collect();
    let principals = approvals.iter_mut().flat_map(|one| {
        let revoked_by = one.revoked_by.as_mut();
        std::iter::once(&mut one.created_by).chain(revoked_by)
    });
    name_keys(state, workspace, reader, principals.collect()).await?;
    Ok(approvals)
}

fn view(record: ApprovalRecord, now: i64) -> Approval {
    let (revoked_at, revoked_by) = match record.revoked.clone() {
        Some(revoked) => (Some(seconds(revoked.at)), Some(revoked.by)),
        None => (None, None),
    };
    Approval {
        id: record.id,
        status: record.status_at(now),
        scope: record.scope,
        agent_id: record.agent_id,
        run_id: record.run_id,
        tool: record.tool,
        amendment: record.definition_sha256.is_some(),
        arguments: match record.covered {
            CoveredCalls::Rules(rules) => Some(rules),
            CoveredCalls::Exact { .. } => None,
        },
        count: record.max_uses,
        used: record.used,
        last_used_at: record.last_used_at.map(seconds),
        interaction_id: record.interaction_id,
        created_at: seconds(record.created_at),
        created_by: record.created_by,
        expires_at: seconds(record.expires_at),
        revoked_at,
        revoked_by,
    }
}

async fn one(
    state: &ApiState,
    caller: &AdminCaller,
    record: ApprovalRecord,
) -> ApiResult<Json<Approval>> {
    let id = record.id;
    let approvals = approval_views(state, &caller.workspace, caller.role, vec![record]).await?;
    let approval = approvals.into_iter().next();
    let approval = approval.ok_or_else(|| ApiError::not_found("approval", id))?;
    Ok(Json(approval))
}

async fn find(state: &ApiState, caller: &AdminCaller, id: ApprovalId) -> ApiResult<ApprovalRecord> {
    let approvals = state.runs.store().interactions();
    let found = approvals.find_approval_of_calls(&caller.workspace, id);
    let found = found.await?;
    found.ok_or_else(|| ApiError::not_found("approval", id))
}

/// Runs that a new approval covers.
struct CoveredRuns {
    scope: ApprovalScope,
    agent: AgentId,
    conversation_key: Option<String>,
    run: Option<RunId>,
}

async fn covered_runs(
    state: &ApiState,
    caller: &AdminCaller,
    spec: &ApprovalSpec,
) -> ApiResult<CoveredRuns> {
    let store = state.runs.store();
    if let Some(run) = spec.run_id {
        let found = store.runs().find_run(&caller.workspace, run).await?;
        let message = "names no run of this workspace";
        let found = found.ok_or_else(|| ApiError::invalid("/run_id", message))?;
        let message = "names a run without a conversation; name its agent in `agent`";
        let key = found
            .conversation_key
            .ok_or_else(|| ApiError::invalid("/run_id", message))?;
        return Ok(CoveredRuns {
            scope: ApprovalScope::Conversation,
            agent: found.agent_id,
            conversation_key: Some(key),
            run: Some(run),
        });
    }
    // The check of the specification has found one of the two.
    let named = spec.agent.as_deref().unwrap_or_default();
    let agent = store.agents().find_agent_id(&caller.workspace, named);
    let message = "names no agent of this workspace";
    let agent = agent.await?;
    Ok(CoveredRuns {
        scope: ApprovalScope::Agent,
        agent: agent.ok_or_else(|| ApiError::invalid("/agent", message))?,
        conversation_key: None,
        run: None,
    })
}

/// Creates an approval of tool calls.
///
/// Calls that it covers pass without a question, in live runs, too. It opens no tool: a call still needs its grant. A
/// workspace has at most 1,000 active approvals.
#[utoipa::path(post, path = "/v1/approvals", tag = "admin", security(("api_key" = [])), request_body = ApprovalSpec, responses(
    (status = 201, description = "Created", body = Approval),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "`details.reason`: too_many_approvals", body = ErrorBody)))]
pub(crate) async fn create_approval(
    caller: AdminCaller,
    State(state): State<ApiState>,
    JsonBody(spec): JsonBody<ApprovalSpec>,
) -> ApiResult<(StatusCode, Json<Approval>)> {
    let now = state.runs.clock().now_ms();
    let faults = check_approval(&spec, seconds(now));
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let covered = covered_runs(&state, &caller, &spec).await?;
    let expires_at = spec.expires_at.unwrap_or(seconds(now) + DEFAULT_SECONDS);
    let record = ApprovalRecord {
        id: ApprovalId(Uuid::now_v7()),
        workspace: caller.workspace.clone(),
        scope: covered.scope,
        agent_id: covered.agent,
        conversation_key: covered.conversation_key,
        run_id: covered.run,
        tool: spec.tool,
        definition_sha256: None,
        covered: CoveredCalls::Rules(spec.arguments),
        max_uses: spec.count,
        used: 0,
        last_used_at: None,
        interaction_id: None,
        created_at: now,
        created_by: caller.key.into(),
        expires_at: expires_at.saturating_mul(1000),
        revoked: None,
    };
    if !state
        .runs
        .store()
        .change(caller.stamp(&state), CreateApproval(record.clone()))
        .await?
    {
        let message = "the workspace has 1,000 active approvals; revoke some of them first";
        return Err(ApiError::conflict("too_many_approvals", message));
    }
    tracing::info!(approval.id = %record.id, tool.name = record.tool, by = %caller.key,
        "approval {} was created", record.id);
    Ok((StatusCode::CREATED, one(&state, &caller, record).await?))
}

/// Lists the approvals of tool calls, newest first. Expired ones stay for 90 days.
#[utoipa::path(get, path = "/v1/approvals", tag = "admin", security(("api_key" = [])), params(NameQuery), responses(
    (status = 200, description = "A page", body = Page<Approval>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_approvals(
    caller: AdminCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<NameQuery>,
) -> ApiResult<Json<Page<Approval>>> {
    let workspace = &caller.workspace;
    let (before, limit) = name_page(&state, "approvals", workspace, query.cursor, query.limit)?;
    let approvals = state.runs.store().interactions();
    let found = approvals.newest_approvals(workspace, before.as_deref(), limit);
    let ListPage { items, has_more } = found.await?;
    let items = approval_views(&state, workspace, caller.role, items).await?;
    let id = |approval: &Approval| approval.id.to_string();
    let page = ListPage { items, has_more };
    Ok(Json(to_page(&state, "approvals", workspace, page, id)))
}

/// Retrieves an approval of tool calls.
#[utoipa::path(get, path = "/v1/approvals/{approval_id}", tag = "admin", security(("api_key" = [])),
    params(("approval_id" = String, Path, description = "The approval")), responses(
    (status = 200, description = "The approval", body = Approval),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such approval", body = ErrorBody)))]
pub(crate) async fn get_approval(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ApprovalId>,
) -> ApiResult<Json<Approval>> {
    let record = find(&state, &caller, id).await?;
    one(&state, &caller, record).await
}

/// Revokes an approval of tool calls.
///
/// The next call in any run, live ones included, needs another approval. Calls that have begun continue.
#[utoipa::path(post, path = "/v1/approvals/{approval_id}/revoke", tag = "admin", security(("api_key" = [])),
    params(("approval_id" = String, Path, description = "The approval")), responses(
    (status = 200, description = "The revoked approval", body = Approval),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such approval", body = ErrorBody)))]
pub(crate) async fn revoke_approval(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ApprovalId>,
) -> ApiResult<Json<Approval>> {
    // The update of another workspace's row would change nothing, and look like a success.
    find(&state, &caller, id).await?;
    let stamp = caller.stamp(&state);
    let revoke = RevokeApproval {
        workspace: caller.workspace.clone(),
        id,
        by: stamp.by.clone(),
        at: stamp.at,
    };
    state.runs.store().change(stamp, revoke).await?;
    tracing::info!(approval.id = %id, by = %caller.key, "approval {id} was revoked");
    let record = find(&state, &caller, id).await?;
    one(&state, &caller, record).await
}
