//! Platform actions as both APIs show them, and their errors.

use domain::authorization::ActionNotGranted;
use http::StatusCode;
use protocol::JsonObject;
use protocol::platform_action::{MAX_RUN_ACTIONS, PlatformAction, PlatformActionStatus};
use runs::platform_actions::PlatformCallError;
use serde::Deserialize;
use serde_json::json;
use store::{PlatformActionRecord, StoreError};

use crate::error::{ApiError, routing};

/// Arguments as stored.
#[derive(Deserialize)]
struct StoredRequest {
    target: JsonObject,
    payload: JsonObject,
}

/// Shows an action at this time, in epoch milliseconds.
pub fn action_view(record: PlatformActionRecord, now: i64) -> Result<PlatformAction, StoreError> {
    let corrupt = |column| StoreError::Corrupt {
        column,
        row: record.id.clone(),
    };
    let request: StoredRequest =
        serde_json::from_str(&record.request).map_err(|_| corrupt("platform_actions.request"))?;
    let status = record.status_at(now);
    let result = record.result.as_deref();
    let invalid = |_| corrupt("platform_actions.result");
    let (output, error) = match (status, result) {
        (PlatformActionStatus::Done, Some(text)) => {
            (Some(serde_json::from_str(text).map_err(invalid)?), None)
        }
        (PlatformActionStatus::Failed, Some(text)) => {
            (None, Some(serde_json::from_str(text).map_err(invalid)?))
        }
        _ => (None, None),
    };
    Ok(PlatformAction {
        status,
        run_id: record.run_id,
        agent_id: record.agent_id,
        target: request.target,
        payload: request.payload,
        created_at: record.created_at.div_euclid(1000),
        expires_at: record.expires_at.div_euclid(1000),
        sequence: record.sequence,
        claimed_at: record.claimed_at.map(|at| at.div_euclid(1000)),
        finished_at: record.finished_at.map(|at| at.div_euclid(1000)),
        output,
        error,
        event: None,
        interaction_id: record.interaction_id,
        action: record.action,
        id: record.id,
    })
}

/// The action does not accept the call any more, or not yet.
pub fn action_not_open(status: PlatformActionStatus) -> ApiError {
    let name = status.as_str();
    let message = match status {
        PlatformActionStatus::AwaitingApproval => {
            return ApiError::conflict(name, "a person has to approve this action first");
        }
        PlatformActionStatus::Open | PlatformActionStatus::Claimed => return action_taken(),
        PlatformActionStatus::Done | PlatformActionStatus::Failed => {
            return ApiError::conflict("finished", "this action has its result already");
        }
        PlatformActionStatus::Declined => "a person has declined this action; do not perform it",
        PlatformActionStatus::Expired => {
            "this action has expired; do not perform it, the agent has to request it again"
        }
        PlatformActionStatus::Cancelled => {
            "this action was cancelled with its run; do not perform it"
        }
    };
    ApiError::new(StatusCode::GONE, "conflict", message).with("reason", json!(name))
}

/// Another program holds the claim.
pub fn action_taken() -> ApiError {
    let message = "another program has claimed this action; do not perform it";
    ApiError::conflict("claimed", message)
}

/// The result names no claim, or that of another program.
pub fn action_not_claimed() -> ApiError {
    let message = "`claim_token` is not that of this action's claim; claim the action first";
    ApiError::conflict("not_claimed", message)
}

/// The result arrived after the end of its claim.
pub fn late_action_result() -> ApiError {
    let message = "the claim ended before this result, and the action has expired; claim with longer lease_seconds, \
        or extend the claim in time";
    ApiError::new(StatusCode::GONE, "conflict", message).with("reason", json!("claim_expired"))
}

impl From<ActionNotGranted> for ApiError {
    fn from(error: ActionNotGranted) -> Self {
        Self::unauthorized(error.to_string())
            .with("operation", json!("platform_api:request"))
            .with("action", json!(error.action))
            .with("rule", json!(error.rule))
    }
}

impl From<PlatformCallError> for ApiError {
    fn from(error: PlatformCallError) -> Self {
        match error {
            PlatformCallError::Unknown => {
                routing::no_such("this run has no platform action with this id")
            }
            PlatformCallError::Mismatch => {
                let message = "another request of this run has this idempotency key; use a new one";
                Self::conflict("idempotency_mismatch", message)
            }
            PlatformCallError::TooMany => {
                let message = format!(
                    "this run has requested {MAX_RUN_ACTIONS} platform actions, the most that one run may"
                );
                Self::conflict("too_many_actions", message)
            }
            PlatformCallError::Wait(error) => error.into(),
            PlatformCallError::Store(error) => error.into(),
        }
    }
}
