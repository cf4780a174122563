//! `POST /v1/events` (contracts §3).

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{HeaderName, HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::event::{EventAccepted, EventBatchAccepted, EventEnvelope};
use protocol::id::RunId;
use protocol::run::AgentRunEvent;

use crate::ApiState;
use crate::auth::ClientCaller;
use crate::client::body_files::KeptFiles;
use crate::client::event_batch::accept_batch;
use crate::client::event_body::EventBody;
use crate::client::runs::cursor;
use crate::error::{ApiError, ApiResult};
use crate::query::{single_header, trace_header};
use crate::run_pages::{GoesOn, goes_on};
use crate::stream::{stream_run, wants_stream};
use runs::start::Accepted;
use runs::watch::WatchFrom;

pub(super) const IDEMPOTENCY_KEY: &str = "idempotency-key";
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const RUN_ID: HeaderName = HeaderName::from_static("runnel-run-id");

/// Posts an event. The one agent that wants it gets a run; an event that nobody wants is kept.
///
/// A CloudEvent 1.0 is taken, too, structured (`application/cloudevents+json`) or binary (`ce-*` headers):
/// its id is `source#id`, with each `#` and `%` of the source percent-encoded, its data is the rest of the envelope. Up to 100 of them
/// are taken as a batch (`application/cloudevents-batch+json`): a fault in one refuses all; after that
/// each has an answer of its own, and the status is 207 when one was not taken.
///
/// With `Accept: text/event-stream` the answer is the run's stream itself; that of a run which has absorbed the event
/// begins behind `last_sequence`. A stream that ends without `run.completed` or `run.failed` is resumed at
/// `{Location}/events` with `Last-Event-ID`.
///
/// Repeating a request with the same `Idempotency-Key`, or else the same `event_id`, gives the first answer again; a
/// stream then goes on behind `Last-Event-ID`. A client that repeats requests needs one of both: without them each
/// is another event, with another run. A key on an event without an `event_id` is forgotten after seven days: then it
/// names another event.
///
/// Files come as base64 (`image_base64`, `file_base64`, `content`, `data:` URLs), or are uploaded before by
/// `POST /v1/artifacts` and named here: by `artifact_id` of an attachment, or by `artifact:ID` where a URL stands. What
/// has more than 64 KiB becomes an artifact, which the event's runs read without a grant.
///
/// Here as on every route, JSON has at most 64 levels and 100,000 values, without U+0000 and halves of surrogate
/// pairs, and a body with a `Content-Encoding` is refused.
#[utoipa::path(post, path = "/v1/events", tag = "client", security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters"),
        ("Last-Event-ID" = Option<String>, Header, description = "Of a request that is repeated for its stream: the last sequence seen. Ignored on a first request"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the span that the run is a child of, where traces are told to a collector; ignored where it is malformed")),
    request_body(content = EventEnvelope, example = json!({
        "event_type": "message.received",
        "conversation": {"conversation_id": "c-7"},
        "input": {"text": "hello big world"},
    })), responses(
    (status = 202, description = "Stored; the run is made, or `reason` says why there is none. Of a batch, all events were taken: an `EventBatchAccepted`, as in 207", body = EventAccepted,
        headers(("Idempotent-Replayed" = String, description = "`true`: the same request came before, and this is its answer"))),
    (status = 207, description = "Of a batch, some events were not taken", body = EventBatchAccepted),
    (status = 200, description = "The run's stream. 204 without one when `Last-Event-ID` already is the terminal", content_type = "text/event-stream", body = AgentRunEvent,
        headers(("Location" = String, description = "The run: its stream is resumed at `{Location}/events`"),
            ("Runnel-Run-Id" = String, description = "The run's id"),
            ("Idempotent-Replayed" = String, description = "`true`: the same request came before"))),
    (status = 400, description = "`details.pointer` names the place", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "`details.reason`: idempotency_mismatch, event_exists, binding_conflict, run_active", body = ErrorBody),
    (status = 429, description = "`details.reason`: queue_full, workspace_runs, endpoint_runs, workspace_events, and key_streams where a stream is asked for; `Retry-After` tells how long to wait", body = ErrorBody,
        headers(("Retry-After" = i64, description = "Seconds"))),
    (status = 410, description = "Repeated for its stream: the events are no longer kept; `details.snapshot_url` tells the outcome", body = ErrorBody),
    (status = 413, description = "The envelope is larger than `limits.event_body_bytes` (16 MiB), or than 1 MiB without its files, `raw` aside; or a file of it finds no room, `details.reason`: workspace_full", body = ErrorBody),
    (status = 415, description = "The body has a `Content-Encoding`; or a file of it is of a kind that is not taken, `details.reason`: mime_type_refused", body = ErrorBody),
    (status = 503, description = "Try again after `Retry-After`", body = ErrorBody)))]
pub(crate) async fn post_event(
    caller: ClientCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: EventBody,
) -> ApiResult<Response> {
    let posted = match body {
        EventBody::One(posted) => *posted,
        EventBody::Batch(batch) => {
            return accept_batch(&state, &caller.workspace, &headers, batch).await;
        }
    };
    let faults = posted.faults();
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    accept_event(&state, &caller, &headers, (posted.event, &posted.files)).await
}

/// Takes a sound event and answers: with the run, or with its stream.
pub(super) async fn accept_event(
    state: &ApiState,
    caller: &ClientCaller,
    headers: &HeaderMap,
    (event, files): (EventEnvelope, &KeptFiles),
) -> ApiResult<Response> {
    let workspace = &caller.workspace;
    let key = single_header(headers, IDEMPOTENCY_KEY)?;
    if key.is_some_and(|key| key.is_empty() || key.len() > 255) {
        return Err(ApiError::invalid_argument(
            "`Idempotency-Key` must have 1 to 255 characters",
        ));
    }
    let trace = trace_header(headers);
    // Before anything is stored: who is refused a stream has posted nothing.
    let place = wants_stream(headers).then(|| state.stream_places().enter(caller.key));
    let place = place.transpose()?;
    let event = (event, &files.files);
    let accepted = state.runs.accept(workspace, event, key, trace).await?;
    let replayed = accepted.replayed;
    let mut response = match (accepted.answer.run_id, place) {
        (Some(run), Some(place)) => {
            let mut response = match stream_from(state, caller, run, &accepted, headers).await? {
                Some(from) => stream_run(state, caller, run, from, place),
                None => StatusCode::NO_CONTENT.into_response(),
            };
            name_run(response.headers_mut(), run, &accepted.answer);
            response
        }
        _ => (StatusCode::ACCEPTED, Json(accepted.answer)).into_response(),
    };
    if replayed {
        response
            .headers_mut()
            .insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// From where the run of an answer is streamed. `None`: its client has seen the terminal.
async fn stream_from(
    state: &ApiState,
    caller: &ClientCaller,
    run: RunId,
    accepted: &Accepted,
    headers: &HeaderMap,
) -> ApiResult<Option<WatchFrom>> {
    let answer = &accepted.answer;
    let begin = match answer.last_sequence {
        Some(stood) => WatchFrom::Joining(stood),
        // An answer of an older gateway, which did not keep where the run stood.
        None if answer.steered => {
            let now = state.runs.from_now_on(&caller.workspace, run).await?;
            WatchFrom::Joining(now)
        }
        None => WatchFrom::After(0),
    };
    // What a client has seen of this run it can only know from an answer before this one.
    if !accepted.replayed {
        return Ok(Some(begin));
    }
    let seen = cursor(headers, None)?;
    let Some(run) = state.runs.store().find_run(&caller.workspace, run).await? else {
        return Ok(Some(begin));
    };
    let (WatchFrom::After(first) | WatchFrom::Joining(first)) = begin;
    Ok(match goes_on(&run, seen.max(first))? {
        GoesOn::Behind(after) if after > first => Some(WatchFrom::After(after)),
        GoesOn::Behind(_) => Some(begin),
        GoesOn::Over => None,
    })
}

/// Says whose stream it is, and where it is resumed.
fn name_run(headers: &mut HeaderMap, run: RunId, answer: &EventAccepted) {
    let url = answer.run_url.as_deref().map(HeaderValue::from_str);
    headers.extend(url.and_then(Result::ok).map(|url| (LOCATION, url)));
    let id = HeaderValue::from_str(&run.to_string());
    headers.extend(id.ok().map(|id| (RUN_ID, id)));
}
