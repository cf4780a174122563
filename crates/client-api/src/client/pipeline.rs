//! `POST /v1/adapters/pipeline/queries`: accepts a bot pipeline's Query as an event.

use axum::extract::State;
use axum::response::Response;
use domain::canonical::canonical_json;
use http::HeaderMap;
use langbot::adapter::pipeline::{QueryIdentity, check_query, identity, to_event};
use protocol::error::ErrorBody;
use protocol::event::{EventAccepted, EventEnvelope};
use protocol::pipeline::PipelineQuery;
use protocol::run::AgentRunEvent;
use store::sha256_hex;

use crate::client::body_files::{DOCUMENT_BYTES, ExtractedFiles, QueryBody};
use crate::client::events::{EventAnswer, accept_event};
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::state::ApiState;

/// Posts a bot pipeline's Query as an event.
///
/// The event is a `message.received` of source `host_adapter`. The responses are those of `POST /v1/events`, with
/// `Accept: text/event-stream` those of `POST /v1/adapters/pipeline/queries/stream`.
///
/// The event id makes retries safe: the same Query returns the first response again. The id is the first
/// available of:
/// - `query_uuid`,
/// - a textual `query_id`,
/// - a digest that makes a numeric `query_id` unique.
///
/// Fields that only a Query has are in `ctx.adapter.extra`; `GET /host/v1/prompt` returns its effective prompt.
/// The agent determines runner, configuration and resources. No field of the Query selects them.
#[utoipa::path(post, path = "/v1/adapters/pipeline/queries", tag = "client", security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = PipelineQuery, responses(
    (status = 202, description = "Stored. A run is created, or `reason` gives the cause", body = EventAccepted,
        headers(("Idempotent-Replayed" = String, description = "`true`: a repeated request; this is the response to the first one"))),
    (status = 400, description = "The Query is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents, and the event does not go to one of them (`details.reason`: key_agents)", body = ErrorBody),
    (status = 409, description = "`details.reason`: idempotency_mismatch, event_exists, binding_conflict, run_active", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: queue_full, workspace_runs, endpoint_runs, workspace_events, key_rate, key_runs, agent_rate, agent_runs. Retry after `Retry-After` seconds", body = ErrorBody),
    (status = 413, description = "The Query exceeds `limits.event_body_bytes` (16 MiB), or 1 MiB without files; or the workspace has no storage for a file (`details.reason`: workspace_full)", body = ErrorBody),
    (status = 415, description = "The body has a `Content-Encoding`; or the type of a file is not accepted (`details.reason`: mime_type_refused)", body = ErrorBody),
    (status = 503, description = "Temporarily unavailable; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn post_pipeline_query(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: QueryBody,
) -> ApiResult<Response> {
    let (event, files) = event_of(body)?;
    let form = EventAnswer::of(&headers);
    accept_event(&state, &caller, &headers, event, files, form).await
}

/// Posts a bot pipeline's Query as an event, and streams its run.
///
/// The Query is that of `POST /v1/adapters/pipeline/queries`, the stream that of `POST /v1/runs/stream`.
#[utoipa::path(post, path = "/v1/adapters/pipeline/queries/stream", tag = "client", security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last sequence seen, for a repeated request. Ignored on a first request"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = PipelineQuery, responses(
    (status = 200, description = "The event stream of the run. The status is 204 without a stream if `Last-Event-ID` is the terminal event", content_type = "text/event-stream", body = AgentRunEvent,
        headers(("Location" = String, description = "URL of the run; resume its stream at `{Location}/stream`"),
            ("Runnel-Run-Id" = String, description = "The run's id"),
            ("Idempotent-Replayed" = String, description = "`true`: a repeated request"))),
    (status = 400, description = "The Query is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents, and the event does not go to one of them (`details.reason`: key_agents)", body = ErrorBody),
    (status = 409, description = "`details.reason`: no_agent, idempotency_mismatch, event_exists, binding_conflict, run_active", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: key_streams, queue_full, workspace_runs, endpoint_runs, workspace_events, key_rate, key_runs, agent_rate, agent_runs. Retry after `Retry-After` seconds", body = ErrorBody),
    (status = 410, description = "A repeated request: retention has deleted the run's events; read the outcome at `details.snapshot_url`", body = ErrorBody)))]
pub(crate) async fn stream_pipeline_query(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    body: QueryBody,
) -> ApiResult<Response> {
    let (event, files) = event_of(body)?;
    accept_event(&state, &caller, &headers, event, files, EventAnswer::Stream).await
}

/// The event of a valid Query.
fn event_of(QueryBody { query, files }: QueryBody) -> ApiResult<(EventEnvelope, ExtractedFiles)> {
    let event_id = match identity(&query) {
        QueryIdentity::Own(id) => id,
        // 128 bits of the digest: no two Queries share an id by chance.
        QueryIdentity::Scoped(parts) => format!("query:{}", &sha256_hex(parts.as_bytes())[..32]),
    };
    let event = to_event(&query, event_id);
    let faults = check_query(&query, &event);
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    // Files are already replaced by references.
    if canonical_json(&event).len() > DOCUMENT_BYTES {
        let message = "a Query has at most 1 MiB without its files";
        return Err(ApiError::too_large(message));
    }
    Ok((event, files))
}
