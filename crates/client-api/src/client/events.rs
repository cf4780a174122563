//! `POST /v1/events`: posts an event and starts its run (`docs/clients.md`).

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::{HeaderName, HeaderValue, LOCATION};
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::event::{EventAccepted, EventEnvelope};
use protocol::id::RunId;
use serde_json::json;

use crate::client::body_files::ExtractedFiles;
use crate::client::event_batch::accept_batch;
use crate::client::event_body::EventBody;
use crate::client::runs::cursor;
use runs::intake::AcceptedEvent;
use runs::watch::WatchFrom;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::query::{idempotency_key, trace_header};
use web::run_pages::{StreamRest, stream_rest};
use web::state::ApiState;
use web::stream::{stream_run, wants_stream};

pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
const RUN_ID: HeaderName = HeaderName::from_static("runnel-run-id");

/// Posts an event. It starts a run of the matching agent; without one it is only stored.
///
/// **Formats.** Besides the native envelope, the route accepts CloudEvents 1.0:
/// - structured (`application/cloudevents+json`) or binary (`ce-*` headers). The event id is `source#id`, with
///   each `#` and `%` of the source percent-encoded; `data` is the rest of the envelope:
///   `{"specversion": "1.0", "id": "42", "source": "/shop", "type": "message.received",
///   "data": {"conversation": {"conversation_id": "c-7"}, "input": {"text": "hello"}}}`
/// - batches (`application/cloudevents-batch+json`): as `POST /v1/event-batches`.
///
/// **Streaming.** `POST /v1/runs/stream` takes the same request and answers with the event stream of the run. This
/// route does the same with `Accept: text/event-stream`, except for an event without a run: its answer is the 202
/// below.
///
/// **Retries.** A request with the same `Idempotency-Key`, or else the same `event_id`, returns the first
/// response again. Send one of the two if you retry: otherwise each request is a new event with a new run. The key
/// of an event without an `event_id` expires after seven days.
///
/// **Files.** Send a file as base64 (`image_base64`, `file_base64`, `content`, `data:` URLs). Or upload it by
/// `POST /v1/artifacts` first. Refer to it by `artifact_id` of an attachment, or by `artifact:ID` in place of a
/// URL. Files over 64 KiB become artifacts, which the event's runs read without a grant.
///
/// **JSON limits.** On all routes, JSON has at most 64 levels and 100,000 values. U+0000 and unpaired surrogates
/// are refused; in requests to models and in results they become U+FFFD. Null counts as absent, except where any
/// value is allowed. A body with a `Content-Encoding` is refused.
#[utoipa::path(post, path = "/v1/events", tag = "client", security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = EventEnvelope, responses(
    (status = 202, description = "Stored. A run is created, or `reason` gives the cause", body = EventAccepted,
        headers(("Idempotent-Replayed" = String, description = "`true`: a repeated request; this is the response to the first one"))),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents, and the event does not go to one of them (`details.reason`: key_agents)", body = ErrorBody),
    (status = 409, description = "`details.reason`: idempotency_mismatch, event_exists, binding_conflict, run_active", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: queue_full, workspace_runs, endpoint_runs, workspace_events, key_rate, key_runs, agent_rate, agent_runs. Retry after `Retry-After` seconds", body = ErrorBody,
        headers(("Retry-After" = i64, description = "Seconds"))),
    (status = 413, description = "The envelope exceeds `limits.event_body_bytes` (16 MiB), or 1 MiB without files and `raw`; or the workspace has no storage for a file (`details.reason`: workspace_full)", body = ErrorBody),
    (status = 415, description = "The body has a `Content-Encoding`; or the type of a file is not accepted (`details.reason`: mime_type_refused)", body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn post_event(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: EventBody,
) -> ApiResult<Response> {
    let posted = match body {
        EventBody::One(posted) => *posted,
        EventBody::Batch(batch) => {
            return accept_batch(&state, caller.sender(), &headers, batch).await;
        }
    };
    let faults = posted.faults();
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let form = EventAnswer::of(&headers);
    let (event, files) = posted.into();
    accept_event(&state, &caller, &headers, event, files, form).await
}

/// The form of the answer to an event.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum EventAnswer {
    /// The event as accepted, with the id of its run.
    Accepted,
    /// The stream of the run; for an event without a run the event as accepted.
    StreamIfAny,
    /// The stream of the run; for an event without a run an error.
    Stream,
}

impl EventAnswer {
    /// The form that `Accept` asks for.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        if wants_stream(headers) {
            Self::StreamIfAny
        } else {
            Self::Accepted
        }
    }
}

/// Accepts a valid event and responds with the run or its stream.
pub(super) async fn accept_event(
    state: &ApiState,
    caller: &ScopedCaller,
    headers: &HeaderMap,
    event: EventEnvelope,
    files: ExtractedFiles,
    form: EventAnswer,
) -> ApiResult<Response> {
    let key = idempotency_key(headers)?;
    let trace = trace_header(headers);
    // Take the stream slot before anything is stored, so that a refused stream posts no event.
    let is_stream = form != EventAnswer::Accepted;
    let stream_slot = is_stream.then(|| state.stream_limit().enter(caller.key));
    let stream_slot = stream_slot.transpose()?;
    let accepted = state
        .runs
        .intake
        .accept(caller.sender(), event, &files.files, key, trace)
        .await?;
    let replayed = accepted.replayed;
    let mut response = match (accepted.answer.run_id, stream_slot) {
        (Some(run), Some(stream_slot)) => {
            let (workspace, key) = caller.credential();
            let mut response = match stream_from(state, caller, run, &accepted, headers).await? {
                Some(from) => stream_run(state, workspace, key, run, from, stream_slot),
                None => StatusCode::NO_CONTENT.into_response(),
            };
            name_run(response.headers_mut(), run, &accepted.answer);
            response
        }
        // An empty stream would look like a run without output.
        (None, _) if form == EventAnswer::Stream => return Err(no_stream(&accepted.answer)),
        _ => (StatusCode::ACCEPTED, Json(accepted.answer)).into_response(),
    };
    if replayed {
        response
            .headers_mut()
            .insert(REPLAYED, HeaderValue::from_static("true"));
    }
    Ok(response)
}

/// Error for a stream request whose event has no run.
fn no_stream(answer: &EventAccepted) -> ApiError {
    let message = "no agent takes this event, so there is no run to stream; the event is stored. \
        `POST /v1/agents/dry-run` shows why, agent by agent";
    ApiError::conflict("no_agent", message)
        .with("event_id", json!(answer.event_id))
        .with("hint", json!(answer.hint))
}

/// The start of the run's stream in a response; `None` if the client has seen the terminal event.
async fn stream_from(
    state: &ApiState,
    caller: &ScopedCaller,
    run: RunId,
    accepted: &AcceptedEvent,
    headers: &HeaderMap,
) -> ApiResult<Option<WatchFrom>> {
    let answer = &accepted.answer;
    let begin = match answer.last_sequence {
        Some(sequence) => WatchFrom::Joining(sequence),
        // Responses stored by older gateways lack the run's position.
        None if answer.steered => {
            let now = state
                .runs
                .streams
                .current_cursor(caller.sender().workspace, run)
                .await?;
            WatchFrom::Joining(now)
        }
        None => WatchFrom::After(0),
    };
    // A client knows sequences of this run only from an earlier response.
    if !accepted.replayed {
        return Ok(Some(begin));
    }
    let seen = cursor(headers, None)?;
    let Some(run) = state
        .runs
        .store()
        .runs()
        .find_run(caller.sender().workspace, run)
        .await?
    else {
        return Ok(Some(begin));
    };
    let (WatchFrom::After(first) | WatchFrom::Joining(first)) = begin;
    Ok(match stream_rest(&run, seen.max(first))? {
        StreamRest::After(after) if after > first => Some(WatchFrom::After(after)),
        StreamRest::After(_) => Some(begin),
        StreamRest::Over => None,
    })
}

/// Adds the headers that identify the run and its stream.
fn name_run(headers: &mut HeaderMap, run: RunId, answer: &EventAccepted) {
    let url = answer.run_url.as_deref().map(HeaderValue::from_str);
    headers.extend(url.and_then(Result::ok).map(|url| (LOCATION, url)));
    let id = HeaderValue::from_str(&run.to_string());
    headers.extend(id.ok().map(|id| (RUN_ID, id)));
}
