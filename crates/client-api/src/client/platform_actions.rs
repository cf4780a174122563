//! Platform actions, for the program that operates the chat platform: list, claim, report the result.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::canonical::canonical_json;
use http::HeaderValue;
use protocol::JsonObject;
use protocol::error::ErrorBody;
use protocol::id::{AgentId, RunId, WorkspaceId};
use protocol::platform_action::{
    ACTION_RESULT_BYTES, ActionResultRequest, ActionResultStatus, ClaimActionRequest,
    ClaimedAction, DEFAULT_CLAIM_SECONDS, PlatformAction, PlatformActionStatus,
};
use protocol::run::Page;
use serde::Deserialize;
use serde_json::{Value, json};
use store::{
    ActionClaim, ActionFilter, ActionPosition, ActionResultStored, AuditEntry, ClaimPlatformAction,
    ClaimPurpose, FinishPlatformAction, PlatformActionRecord, sha256_hex,
};
use uuid::Uuid;

use crate::client::events::REPLAYED;
use domain::event::contains_nul;
use keys::api_key::link_token;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::platform_action::{
    action_not_claimed, action_not_open, action_taken, action_view, late_action_result,
};
use web::query::{PathOf, QueryOf, page_limit};
use web::state::ApiState;

/// Filters, cursor and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ActionsQuery {
    /// Only actions with this status now.
    #[param(inline)]
    status: Option<PlatformActionStatus>,
    /// Only actions of this agent.
    #[param(value_type = Option<String>)]
    agent_id: Option<AgentId>,
    /// Only actions of this run.
    #[param(value_type = Option<String>)]
    run_id: Option<RunId>,
    /// The `next_cursor` of the previous page. A filtered page may be empty, because a request scans at most 10,000
    /// actions.
    after: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Reads a cursor, `MILLISECONDS.ID`.
fn position(cursor: &str) -> Option<ActionPosition> {
    let (created_at, id) = cursor.split_once('.')?;
    Some(ActionPosition {
        created_at: created_at.parse().ok()?,
        id: Uuid::parse_str(id).ok()?.to_string(),
    })
}

/// Lists platform actions, newest first.
///
/// `event` is absent in lists; a claim returns it.
#[utoipa::path(get, path = "/v1/actions", tag = "client", security(("api_key" = [])), params(ActionsQuery),
    responses(
    (status = 200, description = "A page", body = Page<PlatformAction>),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_platform_actions(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<ActionsQuery>,
) -> ApiResult<Json<Page<PlatformAction>>> {
    let limit = page_limit(query.limit)?;
    let now = state.runs.clock().now_ms();
    let (workspace, reached) = caller.list_scope();
    // The filter narrows what the key reaches, and never widens it.
    let agents = match (query.agent_id, reached) {
        (Some(agent), Some(reached)) => {
            Some(reached.into_iter().filter(|one| *one == agent).collect())
        }
        (Some(agent), None) => Some(vec![agent]),
        (None, reached) => reached,
    };
    let before = query.after.as_deref().map(|cursor| {
        let invalid = || ApiError::invalid("/after", "must be the `next_cursor` of a page");
        position(cursor).ok_or_else(invalid)
    });
    let filter = ActionFilter {
        run_id: query.run_id,
        agents,
        status: query.status,
        now,
        before: before.transpose()?,
    };
    let store = state.runs.store();
    let actions = store.interactions();
    let found = actions
        .list_platform_actions(workspace, &filter, caller.answer.page(limit))
        .await?;
    let views = found.records.into_iter();
    let items = views.map(|record| action_view(record, now));
    Ok(Json(Page {
        items: items.collect::<Result<_, _>>()?,
        has_more: found.next.is_some(),
        next_cursor: found
            .next
            .map(|ActionPosition { created_at, id }| format!("{created_at}.{id}")),
        prev_cursor: None,
        total_count: None,
    }))
}

/// Retrieves a platform action.
#[utoipa::path(get, path = "/v1/actions/{action_id}", tag = "client", security(("api_key" = [])),
    params(("action_id" = String, Path, description = "The `id` of the action")), responses(
    (status = 200, description = "The action", body = PlatformAction),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such action", body = ErrorBody)))]
pub(crate) async fn get_platform_action(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<PlatformAction>> {
    let (workspace, record) = caller.find_platform_action(&state, &id).await?;
    Ok(Json(view(&state, workspace, record).await?))
}

/// Claims an open platform action, to perform it.
///
/// Exactly one program gets the claim. It performs the action and reports the result with `claim_token` within
/// `lease_seconds`. A claim is never given to another program, because the action may have happened: without a result
/// in time, the action is `expired`. With the `claim_token` of its claim, a program extends the claim.
#[utoipa::path(post, path = "/v1/actions/{action_id}/claim", tag = "client", security(("api_key" = [])),
    params(("action_id" = String, Path, description = "The `id` of the action")),
    request_body = ClaimActionRequest, responses(
    (status = 200, description = "The claimed action", body = ClaimedAction),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The role of the key claims no actions", body = ErrorBody),
    (status = 404, description = "No such action", body = ErrorBody),
    (status = 409, description = "`details.reason`: claimed, awaiting_approval, finished", body = ErrorBody),
    (status = 410, description = "`details.reason`: expired, declined, cancelled", body = ErrorBody)))]
pub(crate) async fn claim_platform_action(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    JsonBody(request): JsonBody<ClaimActionRequest>,
) -> ApiResult<Json<ClaimedAction>> {
    if let Some((pointer, message)) = request.fault() {
        return Err(ApiError::invalid(pointer, message));
    }
    let (workspace, record) = caller.find_platform_action(&state, &id).await?;
    // A token of the caller never begins a claim, so two programs cannot share one.
    let purpose = match request.claim_token {
        Some(_) => ClaimPurpose::Extension,
        None => ClaimPurpose::New,
    };
    let claim_token = request.claim_token.unwrap_or_else(link_token);
    let seconds = request.lease_seconds.unwrap_or(DEFAULT_CLAIM_SECONDS);
    let claim = ClaimPlatformAction {
        workspace: workspace.clone(),
        run_id: record.run_id,
        id: record.id,
        purpose,
        // Only the hash is stored, so that a copy of the database reports no results.
        token_sha256: sha256_hex(claim_token.as_bytes()),
        claimed_by: caller.key.to_string(),
        lease_ms: i64::try_from(seconds.saturating_mul(1000)).unwrap_or(i64::MAX),
        at: state.runs.clock().now_ms(),
    };
    let claimed = match state.runs.platform_actions.claim(claim).await? {
        ActionClaim::Claimed(record) => *record,
        ActionClaim::Taken => return Err(action_taken()),
        ActionClaim::NotOpen(status) => return Err(action_not_open(status)),
        ActionClaim::Absent => return Err(ApiError::not_found("action", id)),
    };
    let action = view(&state, workspace, claimed).await?;
    Ok(Json(ClaimedAction {
        action,
        claim_token,
    }))
}

/// Reports the result of a claimed platform action.
///
/// The same result again returns the same response with `Idempotent-Replayed: true`. A result after the end of its
/// claim is refused.
#[utoipa::path(post, path = "/v1/actions/{action_id}/result", tag = "client", security(("api_key" = [])),
    params(("action_id" = String, Path, description = "The `id` of the action")),
    request_body = ActionResultRequest, responses(
    (status = 200, description = "The action with its result", body = PlatformAction),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The role of the key claims no actions", body = ErrorBody),
    (status = 404, description = "No such action", body = ErrorBody),
    (status = 409, description = "`details.reason`: not_claimed, finished (it has a different result)", body = ErrorBody),
    (status = 410, description = "`details.reason`: claim_expired", body = ErrorBody)))]
pub(crate) async fn report_action_result(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    JsonBody(request): JsonBody<ActionResultRequest>,
) -> ApiResult<Response> {
    if let Some((pointer, message)) = request.fault() {
        return Err(ApiError::invalid(pointer, message));
    }
    let (workspace, record) = caller.find_platform_action(&state, &id).await?;
    let finish = finish(&caller, &state, workspace, &record, &request)?;
    let (stored, is_replayed) = match state.runs.platform_actions.finish(finish).await? {
        ActionResultStored::Stored(record) => (*record, false),
        ActionResultStored::Same(record) => (*record, true),
        ActionResultStored::Other => {
            return Err(action_not_open(PlatformActionStatus::Done));
        }
        ActionResultStored::NotClaimed => return Err(action_not_claimed()),
        ActionResultStored::Late => return Err(late_action_result()),
        ActionResultStored::Absent => return Err(ApiError::not_found("action", id)),
    };
    let mut response = Json(view(&state, workspace, stored).await?).into_response();
    if is_replayed {
        let replayed = HeaderValue::from_static("true");
        response.headers_mut().insert(REPLAYED, replayed);
    }
    Ok(response)
}

fn finish(
    caller: &ScopedCaller,
    state: &ApiState,
    workspace: &WorkspaceId,
    record: &PlatformActionRecord,
    request: &ActionResultRequest,
) -> ApiResult<FinishPlatformAction> {
    let (status, operation) = match request.status {
        ActionResultStatus::Done => (PlatformActionStatus::Done, "done"),
        ActionResultStatus::Failed => (PlatformActionStatus::Failed, "failed"),
    };
    let result = match (&request.output, &request.error) {
        (Some(output), _) => Some(canonical_json(output)),
        (None, Some(error)) => Some(canonical_json(error)),
        (None, None) => None,
    };
    let text = result.as_deref().unwrap_or_default();
    let pointer = match request.status {
        ActionResultStatus::Done => "/output",
        ActionResultStatus::Failed => "/error",
    };
    if text.len() > ACTION_RESULT_BYTES {
        return Err(ApiError::invalid(pointer, "is larger than 64 KiB"));
    }
    if contains_nul(text) {
        let message = "must not contain the character U+0000";
        return Err(ApiError::invalid(pointer, message));
    }
    let now = state.runs.clock().now_ms();
    Ok(FinishPlatformAction {
        workspace: workspace.clone(),
        run_id: record.run_id,
        id: record.id.clone(),
        token_sha256: sha256_hex(request.claim_token.as_bytes()),
        status,
        result_sha256: sha256_hex(format!("{operation}\n{text}")),
        audit: AuditEntry {
            id: Uuid::now_v7(),
            workspace: workspace.clone(),
            run_id: record.run_id,
            action: "platform_action_result",
            resource: record.action.clone(),
            operation,
            allowed: true,
            rule: format!("performed with API key {}", caller.key).into(),
            interaction_id: record.interaction_id.clone(),
            bytes: text.len() as u64,
            at: now,
            is_shared: false,
        },
        result,
        at: now,
    })
}

/// Members of the event that locate an action.
const LOCATION: [&str; 7] = [
    "event_id",
    "event_type",
    "source",
    "bot_id",
    "conversation",
    "actor",
    "delivery",
];

/// An action with the location of its event, which retention may have deleted.
async fn view(
    state: &ApiState,
    workspace: &WorkspaceId,
    record: PlatformActionRecord,
) -> ApiResult<PlatformAction> {
    let now = state.runs.clock().now_ms();
    let events = state.runs.store().events();
    let event = events.find_event(workspace, &record.event_id).await?;
    let envelope = event.and_then(|event| serde_json::from_str(&event.envelope).ok());
    // Only the target conversation: the message of the event is not for the program.
    let location = envelope.map(|mut envelope: JsonObject| {
        envelope.insert("event_id".to_owned(), json!(record.event_id));
        let member = |name: &str| Some((name.to_owned(), envelope.get(name)?.clone()));
        let members = LOCATION.iter().filter_map(|name| member(name));
        members.collect::<serde_json::Map<String, Value>>()
    });
    Ok(PlatformAction {
        event: location,
        ..action_view(record, now)?
    })
}
