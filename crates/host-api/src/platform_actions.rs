//! Platform actions of the run: request one, wait for its outcome.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use domain::authorization::granted_action;
use domain::platform_action::{CheckedAction, check_request};
use protocol::error::ErrorBody;
use protocol::interaction::MAX_WAIT_SECONDS;
use protocol::platform_action::{
    ACTION_REQUEST_BYTES, ACTION_RESULT_BYTES, PlatformAction, PlatformActionRequest,
};

use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::platform_action::action_view;
use web::query::{PathOf, QueryOf};
use web::state::ApiState;

use crate::interactions::WaitQuery;

/// Requests an action of the chat platform, in the conversation of the event.
///
/// The action is granted when the manifest's `permissions.platform_api` and the agent's
/// `delivery_policy.platform_actions` name it. With approval `ask` a person decides first, by an interaction. A program
/// then claims and performs it. A repeated request with the same `idempotency_key` returns the same action. The action
/// is also an event `action.requested` of the run, with `metadata.action`.
#[utoipa::path(post, path = "/host/v1/platform/actions", tag = "host", security(("run_token" = [])),
    request_body = PlatformActionRequest, responses(
    (status = 200, description = "The action", body = PlatformAction),
    (status = 400, description = "The catalogue has no such action, or it has another target or payload (`details.pointer`)", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted; `details.rule` names the denying rule", body = ErrorBody),
    (status = 409, description = "The run was cancelled, or `details.reason`: idempotency_mismatch, too_many_actions", body = ErrorBody)))]
pub(crate) async fn request_platform_action(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<PlatformActionRequest>,
) -> ApiResult<Json<PlatformAction>> {
    let faults = check_request(&request);
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let call = AuditedCall {
        action: "platform_action_request",
        resource: &request.action,
        operation: "request",
    };
    let permission = granted_action(&caller.grant.snapshot, &request.action);
    let approval = caller.granted(&state, call, permission).await?;
    caller.answer.reserve(ACTION_REQUEST_BYTES)?;
    let action = CheckedAction::of(request, approval);
    let actions = &state.runs.platform_actions;
    let record = actions.request(&caller.grant, action).await?;
    let now = state.runs.clock().now_ms();
    Ok(Json(action_view(record, now)?))
}

/// Retrieves a platform action of this run, and waits for its outcome.
///
/// The response arrives when the status is final, or after `wait_seconds`: call again. Final are all statuses but
/// `awaiting_approval`, `open` and `claimed`. The runner must keep sending heartbeats or results meanwhile. At most 8
/// calls of a run wait at a time, those for interactions included.
#[utoipa::path(get, path = "/host/v1/platform/actions/{action_id}", tag = "host", security(("run_token" = [])),
    params(("action_id" = String, Path, description = "The `id` of an action of this run"), WaitQuery), responses(
    (status = 200, description = "The action", body = PlatformAction),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "The run has no action with this id", body = ErrorBody),
    (status = 429, description = "The run's limit of waiting calls is reached (`details.reason`: interaction_waits)", body = ErrorBody)))]
pub(crate) async fn await_platform_action(
    caller: RunCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    QueryOf(query): QueryOf<WaitQuery>,
) -> ApiResult<Json<PlatformAction>> {
    let wait = query.wait_seconds.unwrap_or(0);
    if wait > MAX_WAIT_SECONDS {
        let message = format!("`wait_seconds` must be 0 to {MAX_WAIT_SECONDS}");
        return Err(ApiError::invalid_argument(message));
    }
    let actions = &state.runs.platform_actions;
    let waiting = actions.await_action(&caller.grant, &id, Duration::from_secs(wait));
    let record = waiting.await?;
    // Reserve memory after the wait, so that waiting calls hold none.
    caller
        .answer
        .reserve(ACTION_REQUEST_BYTES + ACTION_RESULT_BYTES)?;
    let now = state.runs.clock().now_ms();
    Ok(Json(action_view(record, now)?))
}
