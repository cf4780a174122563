//! The event log, for clients and runners.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use protocol::error::ErrorBody;
use protocol::event::AgentEventRecord;
use protocol::id::RunId;
use protocol::run::Page;
use serde::{Deserialize, Serialize};
use store::EventFilter;

use web::auth::{AdminCaller, ClientCaller, ScopedCaller};
use web::error::{ApiError, ApiResult};
use web::event_pages::{EventLogRange, page_events, view};
use web::query::{PathOf, QueryOf, conversations_of};
use web::state::ApiState;

/// Filters, cursor and size of a page.
#[derive(Debug, Default, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventLogQuery {
    /// Only events of conversations with this id.
    conversation_id: Option<String>,
    /// Only events of this bot's conversation; empty for conversations without a bot. Needs `conversation_id`.
    bot_id: Option<String>,
    /// Only events of this thread; empty for conversations without a thread. Needs `conversation_id`.
    thread_id: Option<String>,
    /// Exact event types, separated by commas, at most 16.
    event_types: Option<String>,
    /// Only events before this cursor: the `next_cursor` of the previous page.
    before_cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists events, newest first, including those without an agent.
///
/// With `event_types` a request scans at most 10,000 events. A page may then be empty while `has_more` is true:
/// continue with `next_cursor`.
#[utoipa::path(get, path = "/v1/events", tag = "client", security(("api_key" = [])), params(EventLogQuery), responses(
    (status = 200, description = "A page", body = Page<AgentEventRecord>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody)))]
pub(crate) async fn list_events(
    caller: ClientCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<EventLogQuery>,
) -> ApiResult<Json<Page<AgentEventRecord>>> {
    let part = EventLogRange {
        event_types: query.event_types,
        before_cursor: query.before_cursor,
        limit: query.limit,
    };
    let filter = EventFilter {
        conversations: conversations_of(query.conversation_id, query.bot_id, query.thread_id)?,
        ..EventFilter::default()
    };
    Ok(Json(
        page_events(&state, &caller.workspace, part, filter, &caller.answer).await?,
    ))
}

/// An event and its run.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct FoundEvent {
    #[serde(flatten)]
    record: AgentEventRecord,
    /// The run named in the first response. If that run has not pulled the event and the event got a run of its
    /// own, that run. Null if no agent matched.
    #[schema(value_type = Option<String>)]
    run_id: Option<RunId>,
}

/// Retrieves an event.
#[utoipa::path(get, path = "/v1/events/{*event_id}", tag = "client", security(("api_key" = [])),
    params(("event_id" = String, Path, description = "The event, percent-encoded")), responses(
    (status = 200, description = "The event", body = FoundEvent),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such event", body = ErrorBody)))]
pub(crate) async fn get_event(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(event_id): PathOf<String>,
) -> ApiResult<Json<FoundEvent>> {
    let (workspace, event) = caller.find_event(&state, &event_id).await?;
    Ok(Json(FoundEvent {
        run_id: event.run_id,
        record: view(workspace, event.record, None)?,
    }))
}

/// Retrieves the platform's raw payload of an event.
///
/// Runners get only the reference.
#[utoipa::path(get, path = "/v1/raw-payloads/{*event_id}", tag = "admin", security(("api_key" = [])),
    params(("event_id" = String, Path, description = "The `raw_ref` of an event, percent-encoded")), responses(
    (status = 200, description = "The payload: any JSON", body = serde_json::Value),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The key is not of role admin", body = ErrorBody),
    (status = 404, description = "No such event with a raw payload", body = ErrorBody)))]
pub(crate) async fn get_raw_payload(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(event_id): PathOf<String>,
) -> ApiResult<Response> {
    let store = state.runs.store();
    let payload = store
        .events()
        .find_raw_payload(&caller.workspace, &event_id)
        .await?;
    let payload = payload.ok_or_else(|| ApiError::not_found("raw payload of event", &event_id))?;
    // The stored text is sent as it is, without parsing.
    Ok(([(CONTENT_TYPE, "application/json")], payload).into_response())
}
