//! Batches of CloudEvents. Each event is accepted or refused on its own, in the order of the batch.

use std::collections::HashSet;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::event::{ConversationIdentity, conversation_of};
use http::{HeaderMap, StatusCode};
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::event::{EventBatchAccepted, EventBatchItem, EventEnvelope};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use crate::client::event_body::{EventBatch, PostedEvent};
use runs::artifacts::UploadError;
use runs::hooks::{HookCause, HookRefused};
use runs::intake::{AcceptedEvent, EventSender, IntakeError};
use runs::own_limits::StartLimit;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::query::{IDEMPOTENCY_KEY, trace_header};
use web::state::ApiState;

/// Posts up to 100 events as a batch of CloudEvents 1.0.
///
/// The event id is `source#id`, with each `#` and `%` of the source percent-encoded. `data` is the rest of the
/// envelope of `POST /v1/events`. A fault in one event refuses the batch, and nothing of it is stored. After that
/// each event has a response of its own, with 403 for an event that an API key with `agents` may not post. A
/// repeated batch returns the first responses again.
#[utoipa::path(post, path = "/v1/event-batches", tag = "client", security(("api_key" = [])),
    params(("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the runs, used when traces are exported. A malformed value is ignored")),
    request_body(content = Vec<CloudEvent>, content_type = "application/cloudevents-batch+json", description = "`application/json` is taken, too", example = json!([{
        "specversion": "1.0", "id": "7", "source": "/shop", "type": "message.received",
        "data": {"conversation": {"conversation_id": "c-7"}, "input": {"text": "hello big world"}},
    }])), responses(
    (status = 202, description = "All events are stored", body = EventBatchAccepted),
    (status = 207, description = "Some events were refused: `items` has the error of each", body = EventBatchAccepted),
    (status = 400, description = "The batch is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn post_event_batch(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    EventBatch(batch): EventBatch,
) -> ApiResult<Response> {
    accept_batch(&state, caller.sender(), &headers, batch).await
}

/// An event as a CloudEvent 1.0 in JSON. Other attributes are ignored.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct CloudEvent {
    /// `1.0`.
    specversion: String,
    /// Unique for its source.
    id: String,
    source: String,
    /// The `event_type`, such as `message.received`.
    #[schema(rename = "type")]
    kind: String,
    /// The `subject.subject_id`.
    subject: Option<String>,
    /// The `event_time`, as RFC 3339.
    time: Option<String>,
    data: Option<CloudEventData>,
}

/// The schema of an envelope without the attributes of the CloudEvent.
struct CloudEventData;

impl PartialSchema for CloudEventData {
    fn schema() -> RefOr<Schema> {
        let mut schema = EventEnvelope::schema();
        if let RefOr::T(Schema::Object(data)) = &mut schema {
            data.description = Some("The rest of the envelope.".to_owned());
            for name in ["event_type", "event_id", "source", "event_time"] {
                data.properties.shift_remove(name);
                data.required.retain(|required| required != name);
            }
        }
        schema
    }
}

impl ToSchema for CloudEventData {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        EventEnvelope::schemas(schemas);
    }
}

/// Accepts a batch. A fault in any event refuses the complete batch before anything is stored. After that each
/// event gets the response that it would get as a single event.
pub(super) async fn accept_batch(
    state: &ApiState,
    sender: EventSender<'_>,
    headers: &HeaderMap,
    batch: Vec<PostedEvent>,
) -> ApiResult<Response> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        let message = "a batch takes no `Idempotency-Key`: each event's source and id are its key";
        return Err(ApiError::invalid_argument(message));
    }
    let faults: Vec<Fault> = batch.iter().flat_map(PostedEvent::faults).collect();
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let trace = trace_header(headers);
    let mut items = Vec::with_capacity(batch.len());
    let mut waiting = PendingRetries::default();
    for posted in batch {
        let event_id = posted.event.event_id.clone().unwrap_or_default();
        let conversation = conversation_of(&posted.event);
        // An event must not overtake an earlier one of its conversation that the client will send again.
        let outcome = if waiting.holds_back(conversation.as_ref()) {
            Err(not_tried())
        } else {
            // One after the other: the order of the batch is the order of the conversation.
            let intake = &state.runs.intake;
            let taken = intake.accept(sender, posted.event, &posted.files.files, None, trace);
            let taken = taken.await;
            waiting.note(taken.as_ref().err(), conversation);
            taken.map_err(ApiError::from)
        };
        items.push(item(event_id, outcome));
    }
    // 207, so that clients look at the items.
    let all_taken = items.iter().all(|item| item.error.is_none());
    let status = if all_taken {
        StatusCode::ACCEPTED
    } else {
        StatusCode::MULTI_STATUS
    };
    Ok((status, Json(EventBatchAccepted { items })).into_response())
}

/// Events that the client will retry. Later events must not overtake them.
#[derive(Default)]
struct PendingRetries {
    /// A temporary failure of the gateway: it holds back all later events.
    all: bool,
    /// Conversations with a temporary failure.
    conversations: HashSet<ConversationIdentity>,
}

impl PendingRetries {
    /// True for an event that must wait, because the client will send an earlier one again.
    fn holds_back(&self, conversation: Option<&ConversationIdentity>) -> bool {
        self.all || conversation.is_some_and(|one| self.conversations.contains(one))
    }

    fn note(&mut self, error: Option<&IntakeError>, conversation: Option<ConversationIdentity>) {
        match error {
            // Causes in the gateway itself: later events would fail in the same way.
            Some(
                IntakeError::Stopping
                | IntakeError::Store(_)
                | IntakeError::Attachment(
                    UploadError::BlobStore(_) | UploadError::Store(_) | UploadError::Expired,
                )
                | IntakeError::Hook(HookRefused {
                    cause: HookCause::Unavailable,
                    ..
                })
                | IntakeError::TooFast { .. }
                | IntakeError::Limit(StartLimit::KeyRate { .. } | StartLimit::KeyRuns { .. })
                | IntakeError::WorkspaceFull { .. }
                | IntakeError::EndpointFull { .. },
            ) => self.all = true,
            // Events of other conversations may have other agents; those of this one keep their order.
            Some(IntakeError::QueueFull | IntakeError::Limit(_)) => {
                self.conversations.extend(conversation);
            }
            _ => {}
        }
    }
}

fn item(event_id: String, outcome: ApiResult<AcceptedEvent>) -> EventBatchItem {
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

/// An earlier event of the batch failed temporarily, so this one was not tried.
fn not_tried() -> ApiError {
    ApiError::unavailable("an earlier event was not accepted; send both again, in this order")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(id: &str) -> ConversationIdentity {
        ConversationIdentity {
            bot_id: String::new(),
            conversation_id: id.to_owned(),
            thread_id: String::new(),
        }
    }

    #[test]
    fn later_events_wait_for_retried_ones() {
        let expired = IntakeError::Attachment(UploadError::Expired);
        let full = IntakeError::Attachment(UploadError::Full);
        for (error, same, other) in [
            (IntakeError::Stopping, true, true),
            (expired, true, true),
            (IntakeError::WorkspaceFull { limit: 1 }, true, true),
            (IntakeError::QueueFull, true, false),
            (IntakeError::IdempotencyMismatch, false, false),
            (full, false, false),
        ] {
            let mut waiting = PendingRetries::default();
            waiting.note(Some(&error), Some(conversation("a")));
            waiting.note(None, Some(conversation("b")));
            for (id, expected) in [("a", same), ("b", other)] {
                let is_held_back = waiting.holds_back(Some(&conversation(id)));
                assert_eq!(is_held_back, expected, "{error}: {id}");
            }
            assert_eq!(waiting.holds_back(None), other, "{error}");
        }
    }
}
