//! The run ledger for runners: the run itself, and runs of the same runner in the same conversation.

use axum::Json;
use axum::extract::State;
use domain::run::{Run, is_reserved_code};
use protocol::error::ErrorBody;
use protocol::host_api::RunCancel;
use protocol::id::RunId;
use protocol::run::{AgentRun, AgentRunEvent, Page};
use serde::Deserialize;
use serde_json::json;
use store::{CancelCause, CancelOutcome, RunFilter};

use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::error::routing::no_such;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf};
use web::run_pages::{RawPage, RunEventsRange, RunsRange, list_part, page_run_events, statuses};
use web::state::ApiState;
use web::view::{Direction, agent_run};

const MAX_REASON_CHARS: usize = 500;

/// Filters, cursors and size of a page.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScopeRunsQuery {
    /// Statuses, separated by commas, at most 16.
    statuses: Option<String>,
    /// If given, must be the run's own conversation.
    conversation_id: Option<String>,
    /// Only runs older than this cursor.
    before_cursor: Option<String>,
    /// Only runs newer than this cursor.
    after_cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
    /// `backward` (default): newest first.
    #[serde(default)]
    #[param(inline)]
    direction: Direction,
}

/// Lists the runs of the same runner in the same conversation and thread.
#[utoipa::path(get, path = "/host/v1/runs", tag = "host", security(("run_token" = [])), params(ScopeRunsQuery), responses(
    (status = 200, description = "A page. `total_count` is null above 1,000 matching runs, or if the conversation has more than 10,000", body = Page<AgentRun>),
    (status = 400, description = "A filter or cursor is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The run has no conversation, or `conversation_id` is another one", body = ErrorBody)))]
pub(crate) async fn list_scope_runs(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<ScopeRunsQuery>,
) -> ApiResult<Json<Page<AgentRun>>> {
    let call = AuditedCall {
        action: "run_list",
        resource: "conversation",
        operation: "list",
    };
    let permission = caller.grant.snapshot.run_list();
    let named = query.conversation_id.as_deref();
    let conversation = caller
        .own_conversation(&state, call, permission, named)
        .await?;
    let run = &caller.grant.run;
    let filter = RunFilter {
        statuses: statuses(query.statuses.as_deref())?,
        runner_id: Some(run.runner_id.clone()),
        conversation_key: Some(scope_of(run)?.to_owned()),
        ..RunFilter::default()
    };
    let list = json!([
        "scope_runs",
        run.workspace.as_str(),
        run.runner_id,
        // The key is part of the signature: a cursor of another conversation is rejected.
        filter.conversation_key,
        query.statuses
    ]);
    let part = RunsRange {
        before: query.before_cursor,
        after: query.after_cursor,
        direction: query.direction,
        limit: query.limit,
    };
    let list = list.to_string();
    let (runs, page) = list_part(
        &state,
        &run.workspace,
        &list,
        &filter,
        &part,
        &caller.answer,
    )
    .await?;
    let view = |run| agent_run(run, Some(conversation));
    let total = state
        .runs
        .store()
        .runs()
        .count_runs(&run.workspace, &filter)
        .await?;
    Ok(Json(Page {
        items: runs.into_iter().map(view).collect(),
        total_count: total,
        ..page
    }))
}

/// The conversation key. With the runner it defines the visible runs.
fn scope_of(run: &Run) -> ApiResult<&str> {
    run.conversation_key
        .as_deref()
        .ok_or_else(|| no_such("this run has no conversation"))
}

/// Finds a visible run and audits the access: the own run, or one of the same runner and conversation.
async fn find_in_scope(
    caller: &RunCaller,
    state: &ApiState,
    action: &'static str,
    id: RunId,
) -> ApiResult<Run> {
    let own = &caller.grant.run;
    let name = id.to_string();
    let call = AuditedCall {
        action,
        resource: &name,
        operation: "runs",
    };
    if id != own.id
        // A run without a conversation sees only itself, and the look-up below finds nothing else.
        && own.conversation_key.is_some()
        && let Err(refused) = caller.grant.snapshot.run_list()
    {
        return caller.granted(state, call, Err(refused)).await;
    }
    let found = if id == own.id {
        // The grant may be cached; the row has the current status.
        Some(state.runs.grants.current_run(&caller.grant).await?)
    } else {
        let run = state
            .runs
            .store()
            .runs()
            .find_run(&own.workspace, id)
            .await?;
        run.filter(|run| {
            // Without a key, two runs outside conversations would compare equal.
            own.conversation_key.is_some()
                && run.conversation_key == own.conversation_key
                && run.runner_id == own.runner_id
        })
    };
    let refusal = found
        .is_none()
        .then_some("no such run is visible to this run");
    // A run that exists but is not visible gets the same response as an absent one.
    caller.record(state, call, refusal).await?;
    found.ok_or_else(|| ApiError::not_found("run", id))
}

fn view(caller: &RunCaller, run: Run) -> AgentRun {
    agent_run(run, caller.grant.snapshot.conversation.as_ref())
}

/// Retrieves a run: the own run, or one of the same runner in the same conversation.
#[utoipa::path(get, path = "/host/v1/runs/{run_id}", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 200, description = "The run", body = AgentRun),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "No such run is visible to this run", body = ErrorBody)))]
pub(crate) async fn get_scope_run(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<Json<AgentRun>> {
    let run = find_in_scope(&caller, &state, "run_get", id).await?;
    Ok(Json(view(&caller, run)))
}

/// Bounds and size of a page of events.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScopeEventsQuery {
    /// Only events before this sequence.
    before_cursor: Option<u64>,
    /// Only events after this sequence.
    after_cursor: Option<u64>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
    /// `forward` (default): by ascending sequence.
    #[param(inline)]
    direction: Option<Direction>,
}

async fn page_events(
    caller: &RunCaller,
    state: &ApiState,
    id: RunId,
    query: &ScopeEventsQuery,
) -> ApiResult<Json<RawPage>> {
    let run = find_in_scope(caller, state, "run_events_page", id).await?;
    let part = events_range(query)?;
    page_run_events(state, &run, &part, &caller.answer).await
}

/// Parses the bounds of a page.
pub(super) fn events_range(query: &ScopeEventsQuery) -> ApiResult<RunEventsRange> {
    if query
        .before_cursor
        // The database has signed integers.
        .is_some_and(|before| i64::try_from(before).is_err())
    {
        let message = "`before_cursor` must be a sequence of a run";
        return Err(ApiError::invalid_argument(message));
    }
    Ok(RunEventsRange {
        before: query.before_cursor,
        after: query.after_cursor.unwrap_or(0),
        direction: query.direction.unwrap_or(Direction::Forward),
        limit: query.limit,
    })
}

/// Lists the ledger events of the own run.
#[utoipa::path(get, path = "/host/v1/run/events", tag = "host", security(("run_token" = [])), params(ScopeEventsQuery), responses(
    (status = 200, description = "A page", body = Page<AgentRunEvent>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 410, description = "Retention has deleted these events", body = ErrorBody)))]
pub(crate) async fn page_own_run_events(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<ScopeEventsQuery>,
) -> ApiResult<Json<RawPage>> {
    page_events(&caller, &state, caller.grant.run.id, &query).await
}

/// Lists the ledger events of a visible run.
#[utoipa::path(get, path = "/host/v1/runs/{run_id}/events", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The run"), ScopeEventsQuery), responses(
    (status = 200, description = "A page", body = Page<AgentRunEvent>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "No such run is visible to this run", body = ErrorBody),
    (status = 410, description = "Retention has deleted these events", body = ErrorBody)))]
pub(crate) async fn page_scope_run_events(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<ScopeEventsQuery>,
) -> ApiResult<Json<RawPage>> {
    page_events(&caller, &state, id, &query).await
}

/// Validates the reason of a cancel: 1 to 500 characters.
pub(super) fn check_reason(cancel: &RunCancel) -> ApiResult<()> {
    let length = cancel.reason.as_ref().map(|reason| reason.chars().count());
    if length.is_some_and(|length| length == 0 || length > MAX_REASON_CHARS) {
        let message = format!("must have 1 to {MAX_REASON_CHARS} characters");
        return Err(ApiError::invalid("/reason", message));
    }
    Ok(())
}

async fn cancel(
    caller: &RunCaller,
    state: &ApiState,
    id: RunId,
    cancel: RunCancel,
) -> ApiResult<Json<AgentRun>> {
    check_reason(&cancel)?;
    let run = find_in_scope(caller, state, "run_cancel", id).await?;
    // Codes of the gateway's own causes; a runner must not pretend one of them.
    let request = CancelCause {
        by: caller.grant.run.id.into(),
        reason: cancel.reason.filter(|reason| !is_reserved_code(reason)),
    };
    match state
        .runs
        .cancellation
        .cancel(&run.workspace, id, request)
        .await?
    {
        CancelOutcome::Requested(run) | CancelOutcome::Ended(run) => Ok(Json(view(caller, *run))),
        CancelOutcome::Unknown => Err(ApiError::not_found("run", id)),
    }
}

/// Cancels the own run. Repeated requests have no effect.
#[utoipa::path(post, path = "/host/v1/run/cancel", tag = "host", security(("run_token" = [])), request_body = RunCancel, responses(
    (status = 200, description = "The run; its cancellation is requested", body = AgentRun),
    (status = 400, description = "The reason is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody)))]
pub(crate) async fn cancel_own_run(
    caller: RunCaller,
    State(state): State<ApiState>,
    JsonBody(body): JsonBody<RunCancel>,
) -> ApiResult<Json<AgentRun>> {
    cancel(&caller, &state, caller.grant.run.id, body).await
}

/// Cancels a visible run. Repeated requests, and requests after its end, have no effect.
#[utoipa::path(post, path = "/host/v1/runs/{run_id}/cancel", tag = "host", security(("run_token" = [])),
    params(("run_id" = String, Path, description = "The run")), request_body = RunCancel, responses(
    (status = 200, description = "The run; its cancellation is requested, or it has ended", body = AgentRun),
    (status = 400, description = "The reason is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 404, description = "No such run is visible to this run", body = ErrorBody)))]
pub(crate) async fn cancel_scope_run(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    JsonBody(body): JsonBody<RunCancel>,
) -> ApiResult<Json<AgentRun>> {
    cancel(&caller, &state, id, body).await
}
