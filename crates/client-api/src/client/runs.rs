//! Runs: retrieve, list, stream, explain and cancel.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::authorization::Decision;
use domain::normalize::ERROR_RESPONSE;
use domain::run::Run;
use http::{HeaderMap, StatusCode};
use protocol::api_key::KeyRole;
use protocol::approval::Approval;
use protocol::context::AvailableApis;
use protocol::error::ErrorBody;
use protocol::id::{RunId, WorkspaceId};
use protocol::principal::Principal;
use protocol::resources::AgentResources;
use protocol::run::{AgentRun, AgentRunEvent, Page};
use serde::{Deserialize, Serialize};
use store::{CancelOutcome, StoreError};

use crate::admin::approvals::approval_views;
use crate::client::run_filter::{CountsByStatus, RunFilterQuery};
use crate::client::run_stream::stream_after;
use crate::principals::name_keys;
use runs::grant::read_snapshot;
use web::auth::ScopedCaller;
use web::catalog_work::with_permit;
use web::error::cursor::cursor_expired;
use web::error::{ApiError, ApiResult};
use web::query::{PageQuery, PagedQuery, PathOf, QueryOf, page_limit, single_header};
use web::run_pages::{RunEventsRange, RunsRange, list_part, page_run_events};
use web::state::ApiState;
use web::stream::wants_stream;
use web::view::{Direction, PREVIEW_READ, agent_run, preview};

/// The runs for a reader of this role.
pub(super) async fn views(
    state: &ApiState,
    workspace: &WorkspaceId,
    reader: KeyRole,
    runs: Vec<Run>,
) -> Result<Vec<AgentRun>, StoreError> {
    let repository = state.runs.store().runs();
    // One query for the labels of all runs of the page.
    let labels = repository
        .find_run_labels(workspace, &runs, PREVIEW_READ)
        .await?;
    let view = |run: Run| {
        let key = run.conversation_key.as_ref();
        let conversation = key.and_then(|key| labels.conversations.get(key));
        let input = labels.inputs.get(&run.event_id).cloned();
        AgentRun {
            agent_name: labels.agent_names.get(&run.agent_id).cloned(),
            input_preview: input.map(preview),
            posted_by: run.posted_by,
            cancelled_by: run.cancelled_by.clone(),
            ..agent_run(run, conversation)
        }
    };
    let mut views: Vec<_> = runs.into_iter().map(view).collect();
    let principals = views.iter_mut().filter_map(|run| run.cancelled_by.as_mut());
    name_keys(state, workspace, reader, principals.collect()).await?;
    Ok(views)
}

pub(super) async fn view(state: &ApiState, reader: KeyRole, run: Run) -> ApiResult<AgentRun> {
    let (id, workspace) = (run.id, run.workspace.clone());
    let retried_as = state.runs.store().events().find_retry(id).await?;
    let mut views = views(state, &workspace, reader, vec![run]).await?;
    let view = views.pop().ok_or_else(|| ApiError::not_found("run", id))?;
    Ok(AgentRun { retried_as, ..view })
}

/// Lists runs, newest first.
///
/// Indexes serve `agent_id`, `parent_run_id`, a conversation, a time range, `idempotency_key`, and statuses of live runs
/// without `agent_id` and `conversation_id`. A request with any other filter, or with a key of several agents, scans at
/// most 10,000 runs; 5,000 if it compares text or cost. A page may then be empty while `has_more` is true: continue with
/// `next_cursor`.
#[utoipa::path(get, path = "/v1/runs", tag = "client", security(("api_key" = [])), params(RunFilterQuery, PageQuery),
    responses(
    (status = 200, description = "A page", body = Page<AgentRun>),
    (status = 400, description = "A filter or cursor is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_runs(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PagedQuery { filter, page }: PagedQuery<RunFilterQuery>,
) -> ApiResult<Json<Page<AgentRun>>> {
    let (workspace, agents) = caller.list_scope();
    let list = filter.cursor_list(workspace);
    let filter = filter.checked(agents)?;
    let part = RunsRange {
        before: page.cursor,
        after: None,
        direction: Direction::Backward,
        limit: page.limit,
    };
    let memory = &caller.answer;
    let (runs, page) = list_part(&state, workspace, &list, &filter, &part, memory).await?;
    let items = views(&state, workspace, caller.role, runs).await?;
    // This list has no backward direction.
    Ok(Json(Page {
        items,
        prev_cursor: None,
        ..page
    }))
}

/// Counts runs by status.
///
/// The work is bounded: a request counts among the newest 10,000 runs that an index finds for the filter; among the
/// newest 5,000 if it compares text or cost. Live runs of the workspace are also counted among the newest 10,000 live runs.
#[utoipa::path(get, path = "/v1/runs/counts", tag = "client", security(("api_key" = [])), params(RunFilterQuery),
    responses(
    (status = 200, description = "The counts", body = CountsByStatus),
    (status = 400, description = "A filter is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn count_runs(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    QueryOf(filter): QueryOf<RunFilterQuery>,
) -> ApiResult<Json<CountsByStatus>> {
    let (workspace, agents) = caller.list_scope();
    let filter = filter.checked(agents)?;
    let runs = state.runs.store().runs();
    Ok(Json(runs.count_by_status(workspace, &filter).await?.into()))
}

/// Retrieves a run.
#[utoipa::path(get, path = "/v1/runs/{run_id}", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 200, description = "The run", body = AgentRun),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn get_run(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<Json<AgentRun>> {
    let run = caller.find_run(&state, id).await?;
    Ok(Json(view(&state, caller.role, run).await?))
}

/// Start and size of a page of events.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// Only events after this sequence: the `next_cursor` of the previous page. `Last-Event-ID` takes
    /// precedence.
    after: Option<String>,
    /// Page size, 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists the events of a run.
///
/// With `Accept: text/event-stream` the answer is that of `GET /v1/runs/{run_id}/stream`.
#[utoipa::path(get, path = "/v1/runs/{run_id}/events", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run"),
        ("Last-Event-ID" = Option<String>, Header, description = "The last sequence seen"), EventsQuery),
    responses(
    (status = 200, description = "A page", body = Page<AgentRunEvent>),
    (status = 400, description = "The cursor is not a sequence of this run", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody),
    (status = 410, description = "Retention has deleted these events; read the outcome at `details.snapshot_url`", body = ErrorBody)))]
pub(crate) async fn list_run_events(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<EventsQuery>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let run = caller.find_run(&state, id).await?;
    let after = cursor(&headers, query.after.as_deref())?;
    if wants_stream(&headers) {
        return stream_after(&state, &caller, &run, after);
    }
    let part = RunEventsRange {
        before: None,
        after,
        direction: Direction::Forward,
        limit: query.limit,
    };
    let Json(mut page) = page_run_events(&state, &run, &part, &caller.answer).await?;
    page.prev_cursor = None;
    Ok(Json(page).into_response())
}

/// Start position: `Last-Event-ID`, else `after`, else the beginning. An empty header counts as absent.
pub(super) fn cursor(headers: &HeaderMap, after: Option<&str>) -> ApiResult<u64> {
    let header = single_header(headers, "last-event-id")?;
    let header = header.filter(|text| !text.trim().is_empty());
    parse_cursor(header.or(after))
}

fn parse_cursor(text: Option<&str>) -> ApiResult<u64> {
    let Some(text) = text else {
        return Ok(0);
    };
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    // `parse` would also accept a plus sign.
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| ApiError::invalid_argument("the cursor must be a sequence of this run"))
}

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectionsQuery {
    /// Only rejections after this `n`: the `next_cursor` of the previous page.
    after: Option<String>,
    /// Page size, 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// A runner event that the gateway rejected.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunRejection {
    n: u64,
    /// Reason code, for example `invalid_payload` or `after_terminal`. `error_response`: the runner answered the
    /// run with an HTTP error, or not with results.
    reason: String,
    /// Description of the fault. Absent in records of older gateways.
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    runner_sequence: Option<u64>,
    bytes: u64,
    /// The first bytes of the event, at most 4 KiB. Of an `error_response` the first 200 bytes, for keys of role
    /// `admin` only.
    excerpt: String,
}

/// Lists the runner events of a run that the gateway rejected, with reasons.
#[utoipa::path(get, path = "/v1/runs/{run_id}/rejections", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run"), RejectionsQuery), responses(
    (status = 200, description = "A page", body = Page<RunRejection>),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody),
    (status = 410, description = "Retention has deleted them with the run's events", body = ErrorBody)))]
pub(crate) async fn list_run_rejections(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
    QueryOf(query): QueryOf<RejectionsQuery>,
) -> ApiResult<Json<Page<RunRejection>>> {
    let run = caller.find_run(&state, id).await?;
    let limit = page_limit(query.limit)?;
    let after = parse_cursor(query.after.as_deref())?;
    // An empty page would look like a run without rejections.
    if run.pruned_at.is_some() {
        return Err(cursor_expired(run.id, run.last_sequence));
    }
    let found = state
        .runs
        .store()
        .runs()
        .list_rejections(run.id, after, caller.answer.page(limit))
        .await?;
    let has_more = found.has_more;
    let next_cursor = found
        .items
        .last()
        .filter(|_| has_more)
        .map(|record| record.n.to_string());
    // An error page may show the code and the environment of the runner.
    let is_hidden = |reason: &str| reason == ERROR_RESPONSE && caller.role != KeyRole::Admin;
    let items = found
        .items
        .into_iter()
        .map(|record| RunRejection {
            excerpt: if is_hidden(&record.reason) {
                String::new()
            } else {
                record.excerpt
            },
            n: record.n,
            reason: record.reason,
            message: record.message,
            runner_sequence: record.runner_sequence,
            bytes: record.bytes,
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

/// Resources of a run, and the authorization decision for each considered resource.
#[derive(Serialize, utoipa::ToSchema)]
pub(crate) struct RunAuthorization {
    #[schema(value_type = String)]
    run_id: RunId,
    /// Version of the agent whose policy grants.
    agent_version: i64,
    /// Hash of the frozen snapshot: the token's `res` claim.
    snapshot_sha256: String,
    resources: AgentResources,
    available_apis: AvailableApis,
    /// Entries `{kind, id, operation, granted, layer, rule}`. The layer is manifest, `agent_policy`,
    /// `config_selector` or `event_scope`. The rule of a granted entry is the setting of the agent's policy that allows
    /// it.
    #[schema(value_type = Vec<Object>)]
    decisions: Vec<Decision>,
    /// Amendments of the frozen grant, oldest first. `POST /v1/approvals/{approval_id}/revoke` revokes one.
    amendments: Vec<Approval>,
}

/// Retrieves the authorization decisions of a run.
#[utoipa::path(get, path = "/v1/runs/{run_id}/authorization", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 200, description = "The decisions for all considered resources", body = RunAuthorization),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn get_run_authorization(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<Response> {
    let run = caller.find_run(&state, id).await?;
    let stored = state.runs.store().runs().find_snapshot(id).await?;
    let amendments = state.runs.store().interactions().amendments_of_run(id);
    let (workspace, role) = (&run.workspace, caller.role);
    let amendments = approval_views(&state, workspace, role, amendments.await?).await?;
    let explain = move || -> Result<Response, StoreError> {
        let snapshot = read_snapshot(stored.as_deref().unwrap_or_default());
        let snapshot = snapshot.map_err(|_| StoreError::Corrupt {
            column: "of the authorization snapshot",
            row: id.to_string(),
        })?;
        let explained = RunAuthorization {
            run_id: id,
            agent_version: snapshot.agent_version,
            snapshot_sha256: run.snapshot_sha256,
            resources: Arc::unwrap_or_clone(snapshot.resources),
            available_apis: snapshot.available_apis,
            decisions: snapshot.decisions.to_vec(),
            amendments,
        };
        Ok(Json(explained).into_response())
    };
    // Snapshots take megabytes to parse, so this runs on a blocking thread.
    Ok(with_permit(explain).await??)
}

/// Cancels a run.
///
/// The status is 202 while the run is live and 200 after its end. Repeated requests have no effect.
#[utoipa::path(post, path = "/v1/runs/{run_id}/cancel", tag = "client", security(("api_key" = [])),
    params(("run_id" = String, Path, description = "The run")), responses(
    (status = 202, description = "The cancellation is requested", body = AgentRun),
    (status = 200, description = "The run has ended", body = AgentRun),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such run", body = ErrorBody)))]
pub(crate) async fn cancel_run(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<RunId>,
) -> ApiResult<(StatusCode, Json<AgentRun>)> {
    let run = caller.find_run(&state, id).await?;
    let cancelling =
        state
            .runs
            .cancellation
            .cancel(&run.workspace, id, Principal::from(caller.key).into());
    let (status, run) = match cancelling.await? {
        CancelOutcome::Requested(run) => (StatusCode::ACCEPTED, run),
        CancelOutcome::Ended(run) => (StatusCode::OK, run),
        CancelOutcome::Unknown => return Err(ApiError::not_found("run", id)),
    };
    Ok((status, Json(view(&state, caller.role, *run).await?)))
}
