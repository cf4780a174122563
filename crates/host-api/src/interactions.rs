//! Awaited interactions: a live run waits for the answer.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use domain::interaction::SUBMISSION_BYTES;
use protocol::JsonObject;
use protocol::context::ActorContext;
use protocol::error::ErrorBody;
use protocol::interaction::{AwaitedInteraction, MAX_WAIT_SECONDS};
use serde::Deserialize;

use web::auth::{AuditedCall, RunCaller};
use web::error::{ApiError, ApiResult};
use web::query::{PathOf, QueryOf};
use web::state::ApiState;

/// Wait time.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    /// Maximum wait, in seconds: 0 (default) to 30.
    #[param(minimum = 0, maximum = 30)]
    pub(super) wait_seconds: Option<u64>,
}

/// State of an awaited interaction. All states except `open` are final.
#[derive(utoipa::ToSchema)]
#[schema(as = AwaitedInteraction)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct AwaitedInteractionBody {
    /// - `open`: no answer yet; call again.
    /// - `submitted`: the first valid answer.
    /// - `expired`: no answer before `expires_at`.
    /// - `cancelled`: the run was cancelled.
    status: AwaitedStatus,
    /// For `submitted`: the chosen action; null if the interaction has none.
    action_id: Option<String>,
    /// For `submitted`: values by field id.
    #[schema(value_type = Option<Object>)]
    values: Option<JsonObject>,
    /// For `submitted`: the credential of the answer. `actor_type` is `api_key` with the key's id as `actor_id`,
    /// or `link`.
    actor: Option<ActorContext>,
}

/// State of an awaited interaction.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) enum AwaitedStatus {
    Open,
    Submitted,
    Expired,
    Cancelled,
}

/// Waits for the answer to an interaction of this run with `await: true`.
///
/// The response arrives when the interaction is `submitted`, `expired` or `cancelled`, which is final. After
/// `wait_seconds` it is `open`: call again. If the interaction is not in the ledger yet, the call waits up to 5
/// seconds for it. The runner must keep sending heartbeats or results meanwhile. At most 8 calls of a run wait
/// at a time. A cancelled run may call this during its grace period.
#[utoipa::path(get, path = "/host/v1/interactions/{interaction_id}", tag = "host", security(("run_token" = [])),
    params(("interaction_id" = String, Path, description = "The `interaction_id` of the run's own `interaction.requested`"),
        WaitQuery), responses(
    (status = 200, description = "The state of the interaction", body = AwaitedInteractionBody),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted", body = ErrorBody),
    (status = 404, description = "The run has no interaction with this id", body = ErrorBody),
    (status = 409, description = "`details.reason`: not_awaited", body = ErrorBody),
    (status = 429, description = "The run's limit of waiting calls is reached (`details.reason`: interaction_waits)", body = ErrorBody)))]
pub(crate) async fn await_interaction(
    caller: RunCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    QueryOf(query): QueryOf<WaitQuery>,
) -> ApiResult<Json<AwaitedInteraction>> {
    let wait = query.wait_seconds.unwrap_or(0);
    read_answer(&caller, &state, &id, wait).await.map(Json)
}

/// Waits for an answer, for all APIs that offer it. `wait` is in seconds.
pub(super) async fn read_answer(
    caller: &RunCaller,
    state: &ApiState,
    id: &str,
    wait: u64,
) -> ApiResult<AwaitedInteraction> {
    if wait > MAX_WAIT_SECONDS {
        let message = format!("`wait_seconds` must be 0 to {MAX_WAIT_SECONDS}");
        return Err(ApiError::invalid_argument(message));
    }
    let call = AuditedCall {
        action: "interaction_get",
        resource: id,
        operation: "get",
    };
    let may_ask = caller.grant.snapshot.interaction_request();
    caller.granted(state, call, may_ask).await?;
    let waiting =
        state
            .runs
            .awaited
            .await_interaction(&caller.grant, id, Duration::from_secs(wait));
    let outcome = waiting.await?;
    // Reserve memory after the wait, so that waiting calls hold none.
    if matches!(outcome, AwaitedInteraction::Submitted { .. }) {
        caller.answer.reserve(SUBMISSION_BYTES)?;
    }
    Ok(outcome)
}
