//! `POST /v1/adapters/pipeline/queries`: a bot pipeline's Query, on the way of every event.

use axum::extract::State;
use axum::response::Response;
use domain::canonical::canonical_json;
use http::HeaderMap;
use langbot::adapter::pipeline::{QueryIdentity, check_query, identity, to_event};
use protocol::error::ErrorBody;
use protocol::event::EventAccepted;
use protocol::pipeline::PipelineQuery;
use protocol::run::AgentRunEvent;
use store::sha256_hex;

use crate::ApiState;
use crate::auth::ClientCaller;
use crate::client::body_files::{DOCUMENT_BYTES, QueryBody};
use crate::client::events::accept_event;
use crate::error::{ApiError, ApiResult};

/// Posts a bot pipeline's Query: a `message.received` of source `host_adapter`, with the answers of `POST /v1/events`.
///
/// The event's id is `query_uuid`, else a `query_id` that is a text, else a digest that makes a counted
/// `query_id` unique: posting the same Query again gives the first answer again. What only a Query has
/// stands in `ctx.adapter.extra`; its effective prompt is served at `GET /host/v1/prompt`. Which runner
/// answers, with which configuration and resources, is the agent's business: nothing of the Query picks it.
#[utoipa::path(post, path = "/v1/adapters/pipeline/queries", tag = "client", security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters"),
        ("Last-Event-ID" = Option<String>, Header, description = "Of a request that is repeated for its stream: the last sequence seen. Ignored on a first request"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the span that the run is a child of, where traces are told to a collector; ignored where it is malformed")),
    request_body = PipelineQuery, responses(
    (status = 202, description = "Stored; the run is made, or `reason` says why there is none", body = EventAccepted,
        headers(("Idempotent-Replayed" = String, description = "`true`: the same request came before, and this is its answer"))),
    (status = 200, description = "The run's stream. 204 without one when `Last-Event-ID` already is the terminal", content_type = "text/event-stream", body = AgentRunEvent,
        headers(("Location" = String, description = "The run: its stream is resumed at `{Location}/events`"),
            ("Runnel-Run-Id" = String, description = "The run's id"),
            ("Idempotent-Replayed" = String, description = "`true`: the same request came before"))),
    (status = 400, description = "`details.pointer` names the place in the Query", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "`details.reason`: idempotency_mismatch, event_exists, binding_conflict, run_active", body = ErrorBody),
    (status = 429, description = "`details.reason`: queue_full, workspace_runs, endpoint_runs, workspace_events, and key_streams where a stream is asked for; `Retry-After` tells how long to wait", body = ErrorBody),
    (status = 410, description = "Repeated for its stream: the events are no longer kept; `details.snapshot_url` tells the outcome", body = ErrorBody),
    (status = 413, description = "The Query is larger than `limits.event_body_bytes` (16 MiB), or than 1 MiB without its files; or a file of it finds no room, `details.reason`: workspace_full", body = ErrorBody),
    (status = 415, description = "A file of it is of a kind that is not taken, `details.reason`: mime_type_refused; or the body has a `Content-Encoding`", body = ErrorBody),
    (status = 503, description = "Try again after `Retry-After`", body = ErrorBody)))]
pub(crate) async fn post_pipeline_query(
    caller: ClientCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    QueryBody { query, files }: QueryBody,
) -> ApiResult<Response> {
    let event_id = match identity(&query) {
        QueryIdentity::Own(id) => id,
        QueryIdentity::Scoped(parts) => format!("query:{}", &sha256_hex(parts.as_bytes())[..32]),
    };
    let event = to_event(&query, event_id);
    let faults = check_query(&query, &event);
    if !faults.is_empty() {
        return Err(ApiError::faults(&faults));
    }
    // Its files are marks by now.
    if canonical_json(&event).len() > DOCUMENT_BYTES {
        let message = "what a Query says has at most 1 MiB, its files aside";
        return Err(ApiError::too_large(message));
    }
    accept_event(&state, &caller, &headers, (event, &files)).await
}
