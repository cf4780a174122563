//! The checkpoint of a run: the state from which its runner can continue it after a loss.

use axum::Json;
use axum::extract::State;
use http::HeaderMap;
use protocol::error::ErrorBody;
use protocol::host_api::{CheckpointPut, CheckpointVersion, RunCheckpoint};
use runs::checkpoints::CheckpointOutcome;
use serde_json::json;
use store::{CheckpointWritten, PutCheckpoint};

use web::auth::{AuditedCall, LiveCaller};
use web::error::routing::no_such;
use web::error::version::version_conflict;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::if_match;
use web::recheck::run_moved;
use web::state::ApiState;

use crate::state::document::stored_json;

/// Maximum bytes of a checkpoint as JSON.
pub const CHECKPOINT_BYTES: usize = 256 * 1024;

/// Retrieves the newest checkpoint of the run.
#[utoipa::path(get, path = "/host/v1/checkpoint", tag = "host", security(("run_token" = [])), responses(
    (status = 200, description = "The checkpoint", body = RunCheckpoint),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "No state scope was granted", body = ErrorBody),
    (status = 404, description = "The run has no checkpoint", body = ErrorBody)))]
pub(crate) async fn get_checkpoint(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<RunCheckpoint>> {
    let call = AuditedCall {
        action: "checkpoint_get",
        resource: "run",
        operation: "checkpoint",
    };
    let permission = caller.grant.snapshot.checkpoint();
    caller.granted(&state, call, permission).await?;
    let run_id = caller.grant.run.id;
    let found = state.runs.store().state().find_checkpoint(run_id).await?;
    let found = found.ok_or_else(|| no_such("the run has no checkpoint"))?;
    let run_id = run_id.to_string();
    Ok(Json(RunCheckpoint {
        value: stored_json("run_checkpoints.value", &run_id, &found.value)?,
        version: found.version,
        after: found.after,
    }))
}

/// Stores the state from which the runner can continue the run, and replaces the one before it.
///
/// If the agent's policy starts the run again after a loss of the runner, the context of the new attempt has the value
/// as `runtime.resume`. The results up to `sequence` stay; the call waits until the ledger has them. With `If-Match` the
/// write replaces that version only; version 0 is that of no checkpoint.
#[utoipa::path(put, path = "/host/v1/checkpoint", tag = "host", security(("run_token" = [])),
    params(("If-Match" = Option<i64>, Header, description = "The expected version")),
    request_body = CheckpointPut, responses(
    (status = 200, description = "Stored", body = CheckpointVersion),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "No state scope was granted", body = ErrorBody),
    (status = 409, description = "The version does not match, or the run was cancelled", body = ErrorBody),
    (status = 413, description = "The value is larger than 256 KiB", body = ErrorBody),
    (status = 503, description = "The ledger does not have the result `sequence` yet", body = ErrorBody)))]
pub(crate) async fn put_checkpoint(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<CheckpointPut>,
) -> ApiResult<Json<CheckpointVersion>> {
    let call = AuditedCall {
        action: "checkpoint_put",
        resource: "run",
        operation: "checkpoint",
    };
    let permission = caller.grant.snapshot.checkpoint();
    // Audited in the transaction of the write.
    if permission.is_err() {
        caller.granted(&state, call, permission).await?;
    }
    if body.sequence == Some(0) {
        let message =
            "must be 1 or more: the sequence of a result; leave it out before the first one";
        return Err(ApiError::invalid("/sequence", message));
    }
    let value = body.value.to_string();
    if value.len() > CHECKPOINT_BYTES {
        let message = format!(
            "/value is larger than {CHECKPOINT_BYTES} bytes; keep large parts in the state or storage, and their keys here"
        );
        return Err(ApiError::too_large(message).with("pointer", json!("/value")));
    }
    let put = PutCheckpoint {
        run_id: caller.grant.run.id,
        attempt: caller.grant.attempt,
        audit: caller.audit_entry(&state, call, None, value.len()),
        value,
        after: None,
        if_match: if_match(&headers)?,
        at: state.runs.clock().now_ms(),
    };
    match state.runs.checkpoints.put(put, body.sequence).await? {
        CheckpointOutcome::Written(CheckpointWritten::Stored { version, after }) => {
            Ok(Json(CheckpointVersion { version, after }))
        }
        CheckpointOutcome::Written(CheckpointWritten::Mismatch(version)) => {
            Err(version_conflict(version))
        }
        CheckpointOutcome::Written(CheckpointWritten::Moved) => Err(run_moved()),
        CheckpointOutcome::Written(CheckpointWritten::RunEnded) => Err(ApiError::unauthenticated()),
        CheckpointOutcome::Pending => Err(ApiError::unavailable(
            "the result `sequence` is not in the ledger yet; try again after `Retry-After` seconds",
        )
        .with("reason", json!("results_pending"))),
        CheckpointOutcome::TooOld => {
            let message = "names a result before the newest 256 events or 1 MiB; name a newer one";
            Err(ApiError::invalid("/sequence", message))
        }
    }
}
