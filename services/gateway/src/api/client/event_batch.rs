//! A batch of CloudEvents: each is taken or refused for itself, in the order of the batch.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode};
use protocol::admin::Fault;
use protocol::event::{EventBatchAccepted, EventBatchItem, EventEnvelope};
use protocol::id::WorkspaceId;

use crate::api::ApiState;
use crate::api::client::event_body::Posted;
use crate::api::error::{ApiError, ApiResult};
use crate::api::query::trace_header;
use crate::runs::artifacts::UploadError;
use crate::runs::start::{Accepted, StartError};

/// Takes a batch. A fault in any event refuses the whole of it before anything is stored; after
/// that each event has the answer that it would have had alone.
pub(super) async fn accept_batch(
    state: &ApiState,
    workspace: &WorkspaceId,
    headers: &HeaderMap,
    batch: Vec<Posted>,
) -> ApiResult<Response> {
    if headers.contains_key(super::events::IDEMPOTENCY_KEY) {
        let message = "a batch takes no `Idempotency-Key`: each event's source and id are its key";
        return Err(ApiError::invalid_argument(message));
    }
    let faults: Vec<Fault> = batch.iter().flat_map(Posted::faults).collect();
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let trace = trace_header(headers);
    let mut items = Vec::with_capacity(batch.len());
    let mut out_of_order = false;
    for posted in batch {
        let event_id = posted.event.event_id.clone().unwrap_or_default();
        let outcome = if out_of_order {
            Err(ApiError::not_tried())
        } else {
            let taking = take(state, workspace, posted.event, trace, &mut out_of_order);
            taking.await
        };
        items.push(item(event_id, outcome));
    }
    let all_taken = items.iter().all(|item| item.error.is_none());
    let status = if all_taken {
        StatusCode::ACCEPTED
    } else {
        StatusCode::MULTI_STATUS
    };
    Ok((status, Json(EventBatchAccepted { items })).into_response())
}

/// `out_of_order`: the gateway cannot take any event now; those behind must not overtake this one.
async fn take(
    state: &ApiState,
    workspace: &WorkspaceId,
    event: EventEnvelope,
    trace: Option<&str>,
    out_of_order: &mut bool,
) -> ApiResult<Accepted> {
    let outcome = state.runs.accept(workspace, event, None, trace).await;
    *out_of_order = matches!(
        outcome,
        Err(StartError::Stopping
            | StartError::Store(_)
            | StartError::Attachment(UploadError::Place(_) | UploadError::Store(_))
            | StartError::TooFast { .. }
            | StartError::WorkspaceFull { .. }
            | StartError::EndpointFull { .. })
    );
    Ok(outcome?)
}

fn item(event_id: String, outcome: ApiResult<Accepted>) -> EventBatchItem {
    match outcome {
        Ok(accepted) => EventBatchItem {
            event_id,
            status: StatusCode::ACCEPTED.as_u16(),
            accepted: Some(accepted.answer),
            replayed: accepted.replayed,
            error: None,
        },
        Err(error) => {
            let (status, error) = error.into_parts();
            EventBatchItem {
                event_id,
                status,
                accepted: None,
                replayed: false,
                error: Some(error),
            }
        }
    }
}
