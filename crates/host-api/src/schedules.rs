//! Wakes: a run wakes its own agent later, in its conversation.

use axum::Json;
use axum::extract::State;
use domain::authorization::granted_wake;
use domain::schedule::{check_wake, wake_event_id};
use protocol::error::ErrorBody;
use protocol::schedule::{AgentWake, WakeRequest};
use store::WakeRecord;

use web::auth::{AuditedCall, LiveCaller};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::PathOf;
use web::state::ApiState;

/// Wakes the agent of the run later.
///
/// At the time of the wake the gateway stores an event `agent.wake` in the conversation of the run, for its agent. Wakes
/// are granted when the manifest's `permissions.schedules` and the agent's `resource_policy.schedules` name `wake`. A
/// repeated request with the same `key` returns the same wake, for 30 days after its time. An agent has at most 1,000
/// pending wakes.
#[utoipa::path(post, path = "/host/v1/schedules", tag = "host", security(("run_token" = [])),
    request_body = WakeRequest, responses(
    (status = 200, description = "The wake", body = AgentWake),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted", body = ErrorBody),
    (status = 409, description = "The run was cancelled, or `details.reason`: key_mismatch, too_many_wakes", body = ErrorBody)))]
pub(crate) async fn request_wake(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    JsonBody(request): JsonBody<WakeRequest>,
) -> ApiResult<Json<AgentWake>> {
    let faults = check_wake(&request, state.runs.clock().now_seconds());
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let call = AuditedCall {
        action: "wake_request",
        resource: &request.key,
        operation: "wake",
    };
    let permission = granted_wake(&caller.grant.snapshot);
    caller.granted(&state, call, permission).await?;
    let record = state.runs.schedules.request_wake(&caller.grant, &request);
    Ok(Json(view(record.await?)))
}

/// Cancels a wake of the run's agent and conversation. Its key is free again.
#[utoipa::path(delete, path = "/host/v1/schedules/{key}", tag = "host", security(("run_token" = [])),
    params(("key" = String, Path, description = "The `key` of the wake")), responses(
    (status = 200, description = "The cancelled wake", body = AgentWake),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted", body = ErrorBody),
    (status = 404, description = "No wake has this key", body = ErrorBody),
    (status = 409, description = "The run was cancelled, or `details.reason`: wake_due", body = ErrorBody)))]
pub(crate) async fn cancel_wake(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(key): PathOf<String>,
) -> ApiResult<Json<AgentWake>> {
    let call = AuditedCall {
        action: "wake_cancel",
        resource: &key,
        operation: "wake",
    };
    let permission = granted_wake(&caller.grant.snapshot);
    caller.granted(&state, call, permission).await?;
    let record = state.runs.schedules.cancel_wake(&caller.grant, key);
    Ok(Json(view(record.await?)))
}

fn view(record: WakeRecord) -> AgentWake {
    AgentWake {
        event_id: wake_event_id(record.id),
        key: record.key,
        at: record.due_at.div_euclid(1000),
        status: record.status,
        created_at: record.created_at.div_euclid(1000),
    }
}
