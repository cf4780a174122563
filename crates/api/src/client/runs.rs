//! Runs: find, list, follow, explain, cancel.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::authorization::{Decision, FrozenConversation};
use domain::run::Run;
use http::{HeaderMap, StatusCode};
use protocol::context::AvailableApis;
use protocol::error::ErrorBody;
use protocol::id::{AgentId, RunId, RunnerId};
use protocol::resources::AgentResources;
use protocol::run::{AgentRun, AgentRunEvent, Page};
use serde::{Deserialize, Serialize};
use store::{CancelOutcome, RunFilter, StoreError};

use crate::ApiState;
use crate::auth::ClientCaller;
use crate::catalog_work::in_turn;
use crate::error::{ApiError, ApiResult};
use crate::query::{PathOf, QueryOf, conversations_of, page_limit, single_header};
use crate::run_pages::{
    EventsPart, GoesOn, RunsPart, goes_on, list_part, page_run_events, statuses,
};
use crate::stream::{stream_run, wants_stream};
use crate::view::{Direction, agent_run};
use runs::grant::read_snapshot;
use runs::watch::WatchFrom;

async fn find_run(state: &ApiState, caller: &ClientCaller, id: RunId) -> ApiResult<Run> {
    let run = state.runs.store().find_run(&caller.workspace, id).await?;
    run.ok_or_else(|| ApiError::not_found("run"))
}

async fn views(state: &ApiState, runs: Vec<Run>) -> Result<Vec<AgentRun>, StoreError> {
    let keys = runs
        .iter()
        .filter_map(|run| run.conversation_key.clone())
        .collect();
    let conversations = state.runs.store().find_conversations(keys).await?;
    let view = |run: Run| {
        let parts = run
            .conversation_key
            .as_ref()
            .and_then(|key| conversations.get(key));
        let conversation = parts.map(|(bot_id, conversation_id, thread_id)| FrozenConversation {
            bot_id: bot_id.clone(),
            conversation_id: conversation_id.clone(),
            thread_id: thread_id.clone(),
        });
        agent_run(run, conversation.as_ref())
    };
    Ok(runs.into_iter().map(view).collect())
}

async fn view(state: &ApiState, run: Run) -> ApiResult<AgentRun> {
    let mut views = views(state, vec![run]).await?;
    views.pop().ok_or_else(|| ApiError::not_found("run"))
}

/// Lists runs, newest first.
///
/// With `runner_id`, or with a status of ended runs, a request looks at 10,000 runs at most. A page may then be empty
/// while `has_more` is true: go on with `next_cursor`.
#[utoipa::path(get, path = "/v1/runs", tag = "client", security(("api_key" = [])), params(RunsQuery), responses(
    (status = 200, description = "A page", body = Page<AgentRun>),
    (status = 400, description = "A filter or cursor is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_runs(
    caller: ClientCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<RunsQuery>,
) -> ApiResult<Json<Page<AgentRun>>> {
    let conversations = conversations_of(query.conversation_id, query.bot_id, query.thread_id)?;
    let mut list = serde_json::json!([
        "runs",
        caller.workspace.as_str(),
        query.statuses,
        query.agent_id,
        query.runner_id,
        conversations,
    ]);
    // Cursors of other lists stay as they were.
    if let (Some(parent), Some(parts)) = (query.parent_run_id, list.as_array_mut()) {
        parts.push(serde_json::json!(parent));
    }
    let list = list.to_string();
    let filter = RunFilter {
        statuses: statuses(query.statuses.as_deref())?,
        agent_id: query.agent_id,
        runner_id: query.runner_id,
        conversations,
        conversation_key: None,
        parent_run_id: query.parent_run_id,
    };
    let part = RunsPart {
        before: query.cursor,
        after: None,
        direction: Direction::Backward,
        limit: query.limit,
    };
    let (runs, page) = list_part(
        &state,
        &caller.workspace,
        &list,
        &filter,
        (&part, &caller.answer),
    )
    .await?;
    let items = views(&state, runs).await?;
    // This list is walked one way.
    Ok(Json(Page {
        items,
        prev_cursor: None,
        ..page
    }))
}

/// Finds a run.
#[utoipa::path(get, path = "/v1/runs/{run_id}", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 200, description = "The run", body = AgentRun),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn get_run(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<Json<AgentRun>> {
    let run = find_run(&state, &caller, id).await?;
    Ok(Json(view(&state, run).await?))
}

/// Which runs a list shows.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunsQuery {
    /// Statuses, joined by commas, 16 at most.
    statuses: Option<String>,
    #[param(value_type = Option<String>)]
    agent_id: Option<AgentId>,
    #[param(value_type = Option<String>)]
    runner_id: Option<RunnerId>,
    /// Only the child runs of this run.
    #[param(value_type = Option<String>)]
    parent_run_id: Option<RunId>,
    /// Only those of conversations of this id.
    conversation_id: Option<String>,
    /// Only those of this bot's conversation; empty for the one without a bot. Needs `conversation_id`.
    bot_id: Option<String>,
    /// Only those of this thread; empty for the one without a thread. Needs `conversation_id`.
    thread_id: Option<String>,
    /// The `next_cursor` of the page before.
    cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// From where events are read.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// The sequence after which to begin: the `next_cursor` of the page before. `Last-Event-ID` goes before it.
    after: Option<String>,
    /// Of a page: 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Reads the events of a run: a page as JSON, or the stream, replayed and then live.
///
/// The stream ends with the run's terminal event, also for runs that ended long ago. One that ends without
/// `run.completed` or `run.failed`, as when a gateway stops, is resumed here with `Last-Event-ID`. 204 when the cursor
/// already is the terminal. The name of an SSE event is the `type` in its data; of a type that this version of the gateway
/// does not know, it is `unknown`.
#[utoipa::path(get, path = "/v1/runs/{run_id}/events", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last sequence seen"), EventsQuery),
    responses(
    (status = 200, description = "A page, or the stream", content(
        (Page<AgentRunEvent> = "application/json"), (AgentRunEvent = "text/event-stream"))),
    (status = 204, description = "The terminal was seen already"),
    (status = 400, description = "The cursor is no sequence of this run", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody),
    (status = 410, description = "These events are no longer kept; `details.snapshot_url` tells the outcome", body = ErrorBody),
    (status = 429, description = "`details.reason`: refused_too_often, or key_streams where a stream is asked for; `Retry-After` tells how long to wait", body = ErrorBody)))]
pub(crate) async fn list_run_events(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<EventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let run = find_run(&state, &caller, id).await?;
    let after = cursor(&headers, query.after.as_deref())?;
    if wants_stream(&headers) {
        return Ok(match goes_on(&run, after)? {
            GoesOn::Behind(after) => {
                let place = state.stream_places().enter(caller.key)?;
                stream_run(&state, &caller, id, WatchFrom::After(after), place)
            }
            GoesOn::Over => StatusCode::NO_CONTENT.into_response(),
        });
    }
    let part = EventsPart {
        before: None,
        after,
        direction: Direction::Forward,
        limit: query.limit,
    };
    let Json(mut page) = page_run_events(&state, &run, &part, &caller.answer).await?;
    page.prev_cursor = None;
    Ok(Json(page).into_response())
}

/// `Last-Event-ID` over `after` over the beginning. An empty header is absent.
pub(super) fn cursor(headers: &HeaderMap, after: Option<&str>) -> ApiResult<u64> {
    let header = single_header(headers, "last-event-id")?;
    let header = header.filter(|text| !text.trim().is_empty());
    let Some(text) = header.or(after) else {
        return Ok(0);
    };
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| ApiError::invalid_argument("the cursor must be a sequence of this run"))
}

/// An event that a runner sent and that was not taken.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunRejection {
    n: u64,
    /// For example `invalid_payload` or `after_terminal`.
    reason: String,
    /// What was wrong with it; absent where a gateway before this field was there kept it.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    runner_sequence: Option<u64>,
    bytes: u64,
    /// The beginning of it, at most 4 KiB.
    excerpt: String,
}

/// Lists what a run's runner sent that was not taken, and why.
#[utoipa::path(get, path = "/v1/runs/{run_id}/rejections", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run"), EventsQuery), responses(
    (status = 200, description = "A page", body = Page<RunRejection>),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody),
    (status = 410, description = "They are no longer kept, as the run's events", body = ErrorBody)))]
pub(crate) async fn list_run_rejections(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<EventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Json<Page<RunRejection>>> {
    let run = find_run(&state, &caller, id).await?;
    let limit = page_limit(query.limit)?;
    let after = cursor(&headers, query.after.as_deref())?;
    if run.pruned_at.is_some() {
        return Err(ApiError::cursor_expired(run.id, run.last_sequence));
    }
    let found = state
        .runs
        .store()
        .list_rejections(run.id, after, caller.answer.page(limit))
        .await?;
    let has_more = found.has_more;
    let next_cursor = found
        .items
        .last()
        .filter(|_| has_more)
        .map(|record| record.n.to_string());
    let items = found
        .items
        .into_iter()
        .map(|record| RunRejection {
            n: record.n,
            reason: record.reason,
            message: record.message,
            runner_sequence: record.runner_sequence,
            bytes: record.bytes,
            excerpt: record.excerpt,
        })
        .collect();
    Ok(Json(Page {
        items,
        next_cursor,
        prev_cursor: None,
        total_count: None,
        has_more,
    }))
}

/// What a run may touch, and which layer decided about each thing that was considered.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunAuthorization {
    #[schema(value_type = String)]
    run_id: RunId,
    /// The hash of the frozen snapshot: the token's `res`.
    snapshot_sha256: String,
    resources: AgentResources,
    available_apis: AvailableApis,
    /// `{kind, id, operation, granted, layer, rule}`; layers: manifest, `agent_policy`,
    /// `config_selector`, `event_scope`.
    #[schema(value_type = Vec<Object>)]
    decisions: Vec<Decision>,
}

/// Explains the authorization of a run.
#[utoipa::path(get, path = "/v1/runs/{run_id}/authorization", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 200, description = "Each resource, kept or trimmed", body = RunAuthorization),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn get_run_authorization(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<Response> {
    let run = find_run(&state, &caller, id).await?;
    let stored = state.runs.store().find_snapshot(id).await?;
    let explain = move || -> Result<Response, StoreError> {
        let snapshot = read_snapshot(stored.as_deref().unwrap_or_default());
        let snapshot = snapshot.map_err(|_| StoreError::Corrupt {
            column: "of the authorization snapshot",
            row: id.to_string(),
        })?;
        let explained = RunAuthorization {
            run_id: id,
            snapshot_sha256: run.snapshot_sha256,
            resources: Arc::unwrap_or_clone(snapshot.resources),
            available_apis: snapshot.available_apis,
            decisions: snapshot.decisions.to_vec(),
        };
        Ok(Json(explained).into_response())
    };
    Ok(in_turn(explain).await??)
}

/// Cancels a run: 202 while it lives, 200 once it has ended. Cancelling again changes nothing.
#[utoipa::path(post, path = "/v1/runs/{run_id}/cancel", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 202, description = "The wish is stored", body = AgentRun),
    (status = 200, description = "The run has ended", body = AgentRun),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn cancel_run(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<(StatusCode, Json<AgentRun>)> {
    let (status, run) = match state.runs.cancel(&caller.workspace, id, None).await? {
        CancelOutcome::Requested(run) => (StatusCode::ACCEPTED, run),
        CancelOutcome::Ended(run) => (StatusCode::OK, run),
        CancelOutcome::Unknown => return Err(ApiError::not_found("run")),
    };
    Ok((status, Json(view(&state, *run).await?)))
}
