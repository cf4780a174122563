//! Streams of runs, as operations of their own: a generated client knows by the operation that the answer is a
//! stream.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::run::Run;
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::event::EventEnvelope;
use protocol::id::RunId;
use protocol::run::AgentRunEvent;
use serde::Deserialize;

use crate::client::event_body::EventBody;
use crate::client::events::{EventAnswer, accept_event};
use crate::client::runs::cursor;
use runs::watch::WatchFrom;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::query::{PathOf, QueryOf};
use web::run_pages::{StreamRest, stream_rest};
use web::state::ApiState;
use web::stream::stream_run;

/// Posts an event and streams its run.
///
/// The request is that of `POST /v1/events`. The answer is a stream of server-sent events, with any `Accept`.
/// Each event has the type as its name, its sequence as its id, and an `AgentRunEvent` as its data. The last one
/// is `run.completed` or `run.failed`.
///
/// If an active run absorbs the event, the stream starts at that moment of the run. A gateway that stops sends an
/// event `gateway.draining` without data. If a stream ends without `run.completed` or `run.failed`, resume it at
/// `{Location}/stream` with `Last-Event-ID`.
///
/// A request with the same `Idempotency-Key`, or else the same `event_id`, continues the stream of the first one
/// after `Last-Event-ID`. Send one of the two if your client reconnects by itself: otherwise each request starts a
/// new run.
#[utoipa::path(post, path = "/v1/runs/stream", tag = "client", security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last sequence seen, for a repeated request. Ignored on a first request"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = EventEnvelope, responses(
    (status = 200, description = "The event stream of the run. The status is 204 without a stream if `Last-Event-ID` is the terminal event", content_type = "text/event-stream", body = AgentRunEvent,
        headers(("Location" = String, description = "URL of the run; resume its stream at `{Location}/stream`"),
            ("Runnel-Run-Id" = String, description = "The run's id"),
            ("Idempotent-Replayed" = String, description = "`true`: a repeated request"))),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents, and the event does not go to one of them (`details.reason`: key_agents)", body = ErrorBody),
    (status = 409, description = "`details.reason`: no_agent (the event is stored, and has no run), idempotency_mismatch, event_exists, binding_conflict, run_active", body = ErrorBody),
    (status = 410, description = "A repeated request: retention has deleted the run's events; read the outcome at `details.snapshot_url`", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: key_streams, queue_full, workspace_runs, endpoint_runs, workspace_events, key_rate, key_runs, agent_rate, agent_runs. Retry after `Retry-After` seconds", body = ErrorBody,
        headers(("Retry-After" = i64, description = "Seconds")))))]
pub(crate) async fn stream_event(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: EventBody,
) -> ApiResult<Response> {
    let EventBody::One(posted) = body else {
        let message = "a batch has no stream; send it to `POST /v1/event-batches`";
        return Err(ApiError::invalid_argument(message));
    };
    let faults = posted.faults();
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    let (event, files) = (*posted).into();
    accept_event(&state, &caller, &headers, event, files, EventAnswer::Stream).await
}

/// Start of a stream.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamQuery {
    /// Only events after this sequence. `Last-Event-ID` takes precedence.
    after: Option<String>,
}

/// Streams the events of a run: stored events first, then live ones.
///
/// The stream ends with the terminal event, also for runs that ended long ago. If it ends without
/// `run.completed` or `run.failed`, resume it here with `Last-Event-ID`. The SSE event name is the `type` in its
/// data, or `unknown` for types that this version does not know.
///
/// When the gateway begins to stop, the stream sends the frame `event: gateway.draining`, with a `retry` time and
/// without data or id. The stream stays open if the run lives in this process, until the run ends. Otherwise it
/// ends: resume it after the `retry` time.
#[utoipa::path(get, path = "/v1/runs/{run_id}/stream", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last sequence seen"), StreamQuery),
    responses(
    (status = 200, description = "The event stream. The status is 204 without a stream if the cursor is the terminal event", content_type = "text/event-stream", body = AgentRunEvent),
    (status = 400, description = "The cursor is not a sequence of this run", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody),
    (status = 410, description = "Retention has deleted these events; read the outcome at `details.snapshot_url`", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: refused_too_often, key_streams. Retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn stream_run_events(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<StreamQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let run = caller.find_run(&state, id).await?;
    let after = cursor(&headers, query.after.as_deref())?;
    stream_after(&state, &caller, &run, after)
}

/// The rest of a run's stream for a client that has seen event `after`.
pub(super) fn stream_after(
    state: &ApiState,
    caller: &ScopedCaller,
    run: &Run,
    after: u64,
) -> ApiResult<Response> {
    Ok(match stream_rest(run, after)? {
        StreamRest::After(after) => {
            // Only for a stream that is opened: a 204 needs no slot.
            let stream_slot = state.stream_limit().enter(caller.key)?;
            let (workspace, key) = caller.credential();
            let from = WatchFrom::After(after);
            stream_run(state, workspace, key, run.id, from, stream_slot)
        }
        StreamRest::Over => StatusCode::NO_CONTENT.into_response(),
    })
}
