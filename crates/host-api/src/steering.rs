//! Absorbed follow-up events, pulled by the run at its turn boundaries.

use axum::Json;
use axum::extract::State;
use domain::context::{conversation, event_context};
use protocol::error::ErrorBody;
use protocol::event::EventEnvelope;
use protocol::host_api::{SteeringInputItem, SteeringMode, SteeringPull, SteeringPullResult};
use store::{PULL_BYTES, PullSteering, SteeredEvent, StoreError};

use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::page_limit;
use web::state::ApiState;

/// Takes the events that arrived during the run, oldest first.
///
/// Each event is delivered at most once.
#[utoipa::path(post, path = "/host/v1/steering/pull", tag = "host", security(("run_token" = [])),
    request_body = SteeringPull, responses(
    (status = 200, description = "The events, possibly none", body = SteeringPullResult),
    (status = 400, description = "The limit is not 1 to 100", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
pub(crate) async fn pull_steering(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    JsonBody(pull): JsonBody<SteeringPull>,
) -> ApiResult<Json<SteeringPullResult>> {
    let call = AuditedCall {
        action: "steering_pull",
        resource: "conversation",
        operation: "pull",
    };
    if let Err(refused) = caller.grant.snapshot.steering_pull() {
        return caller.granted(&state, call, Err(refused)).await;
    }
    let limit = match pull.mode {
        SteeringMode::OneAtATime => 1,
        SteeringMode::All => pull
            .limit
            .map_or(Ok(100), |limit| page_limit(Some(limit)))?,
    };
    // Before the events are taken: they are delivered once, so a full budget must not lose them.
    caller.answer.reserve(PULL_BYTES)?;
    let work = PullSteering::new(limit, caller.audit_entry(&state, call, None, 0));
    let events = state
        .runs
        .ledger()
        .pull_steering(caller.grant.run.id, work)
        .await?;
    // The run has ended, and its token with it.
    let events = events.ok_or_else(ApiError::unauthenticated)?;
    let items = events
        .into_iter()
        .map(|event| item(&caller, &event))
        .collect::<Result<_, _>>()?;
    Ok(Json(SteeringPullResult { items }))
}

fn item(caller: &RunCaller, steered: &SteeredEvent) -> Result<SteeringInputItem, StoreError> {
    let event: EventEnvelope =
        serde_json::from_str(&steered.envelope).map_err(|_| StoreError::Corrupt {
            column: "events.envelope",
            row: steered.event_id.clone(),
        })?;
    Ok(SteeringInputItem {
        claimed_run_id: caller.grant.run.id.to_string(),
        runner_id: caller.grant.run.runner_id.to_string(),
        claimed_at: steered.at.div_euclid(1000),
        event: event_context(&steered.event_id, &event),
        conversation: conversation(&caller.grant.snapshot, &event),
        input: event.input.unwrap_or_default(),
        actor: event.actor,
        subject: event.subject,
        metadata: protocol::JsonObject::new(),
    })
}
