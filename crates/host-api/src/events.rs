//! The event log of the run's conversation.

use axum::Json;
use axum::extract::State;
use protocol::error::ErrorBody;
use protocol::event::AgentEventRecord;
use protocol::run::Page;
use serde::Deserialize;
use store::EventFilter;

use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::routing::no_such;
use web::error::{ApiError, ApiResult};
use web::event_pages::{EventLogRange, page_events, view};
use web::query::{PathOf, QueryOf};
use web::state::ApiState;

/// Retrieves an event: the run's own, or another of its conversation.
#[utoipa::path(get, path = "/host/v1/events/{*event_id}", tag = "host", security(("run_token" = [])),
    params(("event_id" = String, Path, description = "The event, percent-encoded")), responses(
    (status = 200, description = "The event", body = AgentEventRecord),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted", body = ErrorBody),
    (status = 404, description = "No such event is visible to the run", body = ErrorBody)))]
pub(crate) async fn get_own_event(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(event_id): PathOf<String>,
) -> ApiResult<Json<AgentEventRecord>> {
    Ok(Json(read_event(&caller, &state, &event_id).await?))
}

/// Reads an event in the run's scope, for all APIs that offer it.
pub(super) async fn read_event(
    caller: &RunCaller,
    state: &ApiState,
    event_id: &str,
) -> ApiResult<AgentEventRecord> {
    let call = AuditedCall {
        action: "event_get",
        resource: "event",
        operation: "get",
    };
    if let Err(refused) = caller.grant.snapshot.event_get() {
        return caller.granted(state, call, Err(refused)).await;
    }
    let run = &caller.grant.run;
    let record = state
        .runs
        .store()
        .events()
        .find_event(&run.workspace, event_id)
        .await?;
    let generation = caller.grant.snapshot.generation;
    let events_after = generation.map(|generation| generation.events_after);
    let record = record.filter(|record| {
        // Without a key, two runs outside conversations would compare equal.
        let same_talk = run.conversation_key.is_some()
            && record.conversation_key == run.conversation_key
            // A restarted conversation hides the events before.
            && record.event_seq > events_after;
        record.event_id == run.event_id || same_talk
    });
    let refusal = record
        .is_none()
        .then_some("no such event is visible to this run");
    // An event that exists but is not visible gets the same response as an absent one.
    caller.record(state, call, refusal).await?;
    let record = record.ok_or_else(|| ApiError::not_found("event", event_id))?;
    Ok(view(&run.workspace, record, None)?)
}

/// Filters, cursor and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnEventsQuery {
    /// If given, must be the run's own conversation.
    conversation_id: Option<String>,
    /// Exact event types, separated by commas, at most 16.
    event_types: Option<String>,
    /// Only events before this cursor: the `next_cursor` of the previous page.
    before_cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists the events of the run's conversation, newest first.
///
/// With `event_types` a request scans at most 10,000 events. A page may then be empty while `has_more` is true:
/// continue with `next_cursor`.
#[utoipa::path(get, path = "/host/v1/events", tag = "host", security(("run_token" = [])),
    params(OwnEventsQuery), responses(
    (status = 200, description = "A page", body = Page<AgentEventRecord>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted, or another conversation", body = ErrorBody)))]
pub(crate) async fn page_own_events(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<OwnEventsQuery>,
) -> ApiResult<Json<Page<AgentEventRecord>>> {
    let call = AuditedCall {
        action: "event_page",
        resource: "conversation",
        operation: "page",
    };
    let permission = caller.grant.snapshot.event_page();
    caller
        .own_conversation(&state, call, permission, query.conversation_id.as_deref())
        .await?;
    let run = &caller.grant.run;
    let key = run
        .conversation_key
        .clone()
        .ok_or_else(|| no_such("this run has no conversation"))?;
    let part = EventLogRange {
        event_types: query.event_types,
        before_cursor: query.before_cursor,
        limit: query.limit,
    };
    let own = EventFilter {
        conversation_key: Some(key),
        after_seq: caller
            .grant
            .snapshot
            .generation
            .map(|generation| generation.events_after),
        ..EventFilter::default()
    };
    let page = page_events(&state, &run.workspace, part, own, &caller.answer).await?;
    Ok(Json(page))
}
