//! The answer to a question that the run waits for.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use domain::interaction::SUBMISSION_BYTES;
use protocol::JsonObject;
use protocol::context::ActorContext;
use protocol::error::ErrorBody;
use protocol::interaction::{AwaitedInteraction, MOST_WAIT_SECONDS};
use serde::Deserialize;

use crate::ApiState;
use crate::auth::{Call, RunCaller};
use crate::error::{ApiError, ApiResult};
use crate::query::{PathOf, QueryOf};

/// How long to wait.
#[derive(Clone, Copy, Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitQuery {
    /// How long the call waits for an answer, in seconds: 0 (default) to 30.
    #[param(minimum = 0, maximum = 30)]
    wait_seconds: Option<u64>,
}

/// The state of an interaction that its run waits for. All states but `open` are final.
#[derive(utoipa::ToSchema)]
#[schema(as = AwaitedInteraction)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct AwaitedInteractionBody {
    /// `open`: no answer yet, call again. `submitted`: the first answer, checked against the interaction. `expired`: no
    /// answer came before `expires_at`. `cancelled`: the run was cancelled.
    status: AwaitedStatus,
    /// Of `submitted`: the action that was taken; null where the interaction has none.
    action_id: Option<String>,
    /// Of `submitted`: values by the ids of fields.
    #[schema(value_type = Option<Object>)]
    values: Option<JsonObject>,
    /// Of `submitted`: the credential of the answer. `actor_type`: `api_key`, with the key's id as `actor_id`, or `link`.
    actor: Option<ActorContext>,
}

/// A state of an awaited interaction.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "snake_case")]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) enum AwaitedStatus {
    Open,
    Submitted,
    Expired,
    Cancelled,
}

/// Reads the answer to an interaction that the run asked with `await: true`, and waits for it.
///
/// The call ends when the interaction is `submitted`, `expired` or `cancelled`, which is final, or says `open` after
/// `wait_seconds`: call again. The interaction may still be on its way to the ledger: then the call waits for it, for
/// 5 seconds at most. Heartbeats and results are sent meanwhile as ever: a call that waits does not stand for them. At
/// most 8 calls of a run wait at a time. Open in the grace of a cancel, too.
#[utoipa::path(get, path = "/host/v1/interactions/{interaction_id}", tag = "host", security(("run_token" = [])),
    params(("interaction_id" = String, Path, description = "The `interaction_id` of the run's own `interaction.requested`"),
        WaitQuery), responses(
    (status = 200, description = "The state of the interaction", body = AwaitedInteractionBody),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "The token opens nothing", body = ErrorBody),
    (status = 403, description = "Not granted", body = ErrorBody),
    (status = 404, description = "The run has asked nothing under this id", body = ErrorBody),
    (status = 409, description = "`details.reason`: not_awaited", body = ErrorBody),
    (status = 429, description = "As many calls of the run wait as may (`details.reason`: interaction_waits)", body = ErrorBody)))]
pub(crate) async fn await_interaction(
    caller: RunCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    QueryOf(query): QueryOf<WaitQuery>,
) -> ApiResult<Json<AwaitedInteraction>> {
    let wait = query.wait_seconds.unwrap_or(0);
    read_answer(&caller, &state, &id, wait).await.map(Json)
}

/// Reads the answer on behalf of any face of the host API. `wait`: seconds.
pub(super) async fn read_answer(
    caller: &RunCaller,
    state: &ApiState,
    id: &str,
    wait: u64,
) -> ApiResult<AwaitedInteraction> {
    if wait > MOST_WAIT_SECONDS {
        let message = format!("`wait_seconds` must be 0 to {MOST_WAIT_SECONDS}");
        return Err(ApiError::invalid_argument(message));
    }
    let call = Call {
        action: "interaction_get",
        resource: id,
        operation: "get",
    };
    let may_ask = caller.grant.snapshot.interaction_request();
    caller.granted(state, call, may_ask).await?;
    let waiting = state
        .runs
        .await_interaction(&caller.grant, id, Duration::from_secs(wait));
    let told = waiting.await?;
    // After the wait: a call that waits holds no memory for its answer.
    if matches!(told, AwaitedInteraction::Submitted { .. }) {
        caller.answer.reserve(SUBMISSION_BYTES)?;
    }
    Ok(told)
}
