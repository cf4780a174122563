//! The effective prompt of events with one.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::event::EventEnvelope;
use protocol::host_api::EffectivePrompt;
use store::StoreError;

use web::auth::{AuditedCall, LiveCaller};
use web::error::ApiResult;
use web::error::routing::no_such;
use web::state::ApiState;

/// Retrieves the effective prompt of the run, as preprocessed by the event's adapter.
#[utoipa::path(get, path = "/host/v1/prompt", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "The prompt messages", body = EffectivePrompt),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "The event has no effective prompt", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
pub(crate) async fn get_prompt(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<EffectivePrompt>> {
    let call = AuditedCall {
        action: "prompt_get",
        resource: "prompt",
        operation: "get",
    };
    // A missing grant is a 404, because most events have no prompt.
    let granted = caller.grant.snapshot.prompt_get();
    let refusal = granted.err().map(|refused| refused.to_string());
    caller.record(&state, call, refusal.as_deref()).await?;
    if refusal.is_some() {
        return Err(no_such("this run has no prompt"));
    }
    let run = &caller.grant.run;
    let inputs = state.runs.store().runs().find_run_inputs(run).await?;
    let inputs = inputs.ok_or_else(|| no_such("this run has no prompt"))?;
    let event: EventEnvelope =
        serde_json::from_str(&inputs.envelope).map_err(|_| StoreError::Corrupt {
            column: "events.envelope",
            row: run.event_id.clone(),
        })?;
    let prompt = event.adapter.map(|adapter| adapter.prompt);
    Ok(Json(EffectivePrompt {
        prompt: prompt.unwrap_or_default(),
    }))
}
