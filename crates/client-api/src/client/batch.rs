//! Acts on many runs, as jobs.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::LOCATION;
use protocol::error::ErrorBody;
use protocol::id::{JobId, RunId, WorkspaceId};
use protocol::job::{BulkJob, BulkPreview, BulkRequest, JobKind, JobStatus, MAX_JOB_RUNS};
use protocol::run::{Page, RunStatus};
use serde_json::json;
use store::{JobProgress, JobRecord, MAX_OPEN_JOBS, RunFilter};
use uuid::Uuid;

use super::run_filter::RunFilterQuery;
use super::runs::views;
use crate::admin::endpoints::{NameQuery, name_page, to_page};
use web::auth::ClientCaller;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf};
use web::state::ApiState;

/// Runs that a dry run shows.
const SHOWN: usize = 10;

/// Cancels the runs that match the filters, as a job.
///
/// Without `statuses` it takes the live runs. `{"dry_run": true}` counts them. The act needs `expect`: it is refused if
/// more runs match by then; fewer may match, because some have ended.
#[utoipa::path(post, path = "/v1/runs/cancel", tag = "client", security(("api_key" = [])), params(RunFilterQuery),
    request_body = BulkRequest, responses(
    (status = 200, description = "The answer to a dry run", body = BulkPreview),
    (status = 202, description = "The job, which began", body = BulkJob,
        headers(("Location" = String, description = "URL of the job"))),
    (status = 400, description = "The body or a filter is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody),
    (status = 409, description = "`details.reason`: count_changed (`details.count` is the new number), too_many_runs (narrow the filters), too_many_jobs", body = ErrorBody)))]
pub(crate) async fn cancel_runs(
    caller: ClientCaller,
    State(state): State<ApiState>,
    QueryOf(filter): QueryOf<RunFilterQuery>,
    JsonBody(request): JsonBody<BulkRequest>,
) -> ApiResult<Response> {
    act(&state, &caller, JobKind::Cancel, filter, request).await
}

/// Runs the events of the ended runs that match the filters again, as a job.
///
/// Without `statuses` it takes runs that failed, timed out or were cancelled. `{"dry_run": true}` counts them. The act
/// needs `expect`: it is refused if more runs match by then. Each run is retried as by its own route; a run that a limit
/// of the gateway refuses waits, and is tried again each second.
#[utoipa::path(post, path = "/v1/runs/retry", tag = "client", security(("api_key" = [])), params(RunFilterQuery),
    request_body = BulkRequest, responses(
    (status = 200, description = "The answer to a dry run", body = BulkPreview),
    (status = 202, description = "The job, which began", body = BulkJob,
        headers(("Location" = String, description = "URL of the job"))),
    (status = 400, description = "The body or a filter is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody),
    (status = 409, description = "`details.reason`: count_changed (`details.count` is the new number), too_many_runs (narrow the filters), too_many_jobs", body = ErrorBody)))]
pub(crate) async fn retry_runs(
    caller: ClientCaller,
    State(state): State<ApiState>,
    QueryOf(filter): QueryOf<RunFilterQuery>,
    JsonBody(request): JsonBody<BulkRequest>,
) -> ApiResult<Response> {
    act(&state, &caller, JobKind::Retry, filter, request).await
}

async fn act(
    state: &ApiState,
    caller: &ClientCaller,
    kind: JobKind,
    filter: RunFilterQuery,
    request: BulkRequest,
) -> ApiResult<Response> {
    if let Some((pointer, message)) = request.fault(kind) {
        return Err(ApiError::invalid(pointer, message));
    }
    let filter = with_statuses(kind, filter.checked(None)?)?;
    let runs = matching(state, &caller.workspace, kind, &filter).await?;
    let count = runs.len() as u64;
    if request.dry_run {
        let preview = preview(state, caller, count, &runs).await?;
        return Ok(Json(preview).into_response());
    }
    let expected = request.expect.unwrap_or(0);
    if count > expected {
        let message = format!(
            "{count} runs match, more than the expected {expected}; look at a dry run again, then send its `count`"
        );
        return Err(ApiError::conflict("count_changed", message).with("count", json!(count)));
    }
    let job = JobRecord {
        id: JobId(Uuid::now_v7()),
        workspace: caller.workspace.clone(),
        kind,
        key: caller.key,
        reason: request.reason,
        total: count,
        progress: JobProgress::default(),
        created_at: state.runs.clock().now_ms(),
        started_at: None,
        finished_at: None,
        cancel_requested_at: None,
    };
    if !state.runs.jobs.start(job.clone(), runs).await? {
        let message =
            format!("{MAX_OPEN_JOBS} jobs of this workspace are not finished; wait, or cancel one");
        return Err(ApiError::conflict("too_many_jobs", message));
    }
    tracing::info!(
        job.id = %job.id, job.kind = kind.as_str(), by = %caller.key, total = count,
        "job {} begins: {} of {count} runs", job.id, kind.as_str()
    );
    let location = format!("/v1/jobs/{}", job.id);
    Ok((
        StatusCode::ACCEPTED,
        [(LOCATION, location)],
        Json(view(job)),
    )
        .into_response())
}

/// The filter for statuses on which the act has an effect.
fn with_statuses(kind: JobKind, filter: RunFilter) -> ApiResult<RunFilter> {
    let fits = |status: &RunStatus| match kind {
        JobKind::Cancel => !status.is_terminal(),
        JobKind::Retry => status.is_terminal() && *status != RunStatus::Completed,
    };
    if !filter.statuses.iter().all(fits) {
        let message = match kind {
            JobKind::Cancel => "`statuses` must name live runs: created, queued, claimed, running",
            JobKind::Retry => "`statuses` must name ended runs: failed, cancelled, timeout",
        };
        return Err(ApiError::invalid("/statuses", message));
    }
    let statuses = if filter.statuses.is_empty() {
        RunStatus::ALL.into_iter().filter(fits).collect()
    } else {
        filter.statuses
    };
    Ok(RunFilter { statuses, ..filter })
}

/// The runs in the order of the act.
async fn matching(
    state: &ApiState,
    workspace: &WorkspaceId,
    kind: JobKind,
    filter: &RunFilter,
) -> ApiResult<Vec<RunId>> {
    let jobs = state.runs.store().leases();
    let found = jobs
        .find_matching_ids(workspace, filter, MAX_JOB_RUNS)
        .await?;
    let mut found = found.ok_or_else(|| {
        let message = format!(
            "the filters match more than {MAX_JOB_RUNS} runs, or too many to search; narrow them, for example with \
             created_after"
        );
        ApiError::conflict("too_many_runs", message)
    })?;
    // A cancel begins with the newest, so that the end of a run starts no queued one that is cancelled next.
    if kind == JobKind::Retry {
        found.reverse();
    }
    Ok(found)
}

async fn preview(
    state: &ApiState,
    caller: &ClientCaller,
    count: u64,
    runs: &[RunId],
) -> ApiResult<BulkPreview> {
    let repository = state.runs.store().runs();
    let mut first = Vec::new();
    for run in runs.iter().take(SHOWN) {
        first.extend(repository.find_run(&caller.workspace, *run).await?);
    }
    let first = views(state, &caller.workspace, caller.role, first).await?;
    Ok(BulkPreview { count, first })
}

/// Lists the jobs of the workspace, newest first.
#[utoipa::path(get, path = "/v1/jobs", tag = "client", security(("api_key" = [])), params(NameQuery), responses(
    (status = 200, description = "A page", body = Page<BulkJob>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody)))]
pub(crate) async fn list_jobs(
    caller: ClientCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<NameQuery>,
) -> ApiResult<Json<Page<BulkJob>>> {
    let workspace = &caller.workspace;
    let (before, limit) = name_page(&state, "jobs", workspace, query.cursor, query.limit)?;
    let jobs = state.runs.store().leases();
    let found = jobs
        .newest_jobs(workspace, before.as_deref(), limit)
        .await?;
    let id = |job: &BulkJob| job.id.to_string();
    Ok(Json(to_page(
        &state,
        "jobs",
        workspace,
        found.map(view),
        id,
    )))
}

/// Retrieves a job and its progress.
#[utoipa::path(get, path = "/v1/jobs/{job_id}", tag = "client", security(("api_key" = [])),
    params(("job_id" = String, Path, description = "The job")), responses(
    (status = 200, description = "The job", body = BulkJob),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody),
    (status = 404, description = "No such job", body = ErrorBody)))]
pub(crate) async fn get_job(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<JobId>,
) -> ApiResult<Json<BulkJob>> {
    let jobs = state.runs.store().leases();
    let found = jobs.find_job(&caller.workspace, id).await?;
    let found = found.ok_or_else(|| ApiError::not_found("job", id))?;
    Ok(Json(view(found)))
}

/// Cancels a job.
///
/// The job ends after its current batch of at most 50 runs. Runs that it has changed stay changed. Repeated requests
/// have no effect.
#[utoipa::path(post, path = "/v1/jobs/{job_id}/cancel", tag = "client", security(("api_key" = [])),
    params(("job_id" = String, Path, description = "The job")), responses(
    (status = 200, description = "The job, which ends soon or has ended", body = BulkJob),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody),
    (status = 404, description = "No such job", body = ErrorBody)))]
pub(crate) async fn cancel_job(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<JobId>,
) -> ApiResult<Json<BulkJob>> {
    let cancelled = state.runs.jobs.cancel(&caller.workspace, id).await?;
    let job = cancelled.ok_or_else(|| ApiError::not_found("job", id))?;
    Ok(Json(view(job)))
}

fn view(job: JobRecord) -> BulkJob {
    let seconds = |at: i64| at.div_euclid(1000);
    let is_complete = job.progress.count() >= job.total;
    let status = match (job.finished_at, job.started_at) {
        (Some(_), _) if is_complete => JobStatus::Completed,
        (Some(_), _) => JobStatus::Cancelled,
        (None, Some(_)) => JobStatus::Running,
        (None, None) => JobStatus::Queued,
    };
    let JobProgress {
        done,
        failed,
        errors,
    } = job.progress;
    BulkJob {
        id: job.id,
        kind: job.kind,
        status,
        total: job.total,
        done,
        failed,
        errors,
        reason: job.reason,
        created_by: job.key.into(),
        created_at: seconds(job.created_at),
        started_at: job.started_at.map(seconds),
        finished_at: job.finished_at.map(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acts_take_only_statuses_they_change() {
        let filter = |statuses: &[RunStatus]| RunFilter {
            statuses: statuses.to_vec(),
            ..RunFilter::default()
        };
        let all = with_statuses(JobKind::Retry, filter(&[])).unwrap();
        assert_eq!(
            all.statuses,
            [RunStatus::Failed, RunStatus::Cancelled, RunStatus::Timeout]
        );
        assert!(with_statuses(JobKind::Cancel, filter(&[RunStatus::Queued])).is_ok());
        for (kind, status) in [
            (JobKind::Cancel, RunStatus::Failed),
            (JobKind::Retry, RunStatus::Completed),
            (JobKind::Retry, RunStatus::Running),
        ] {
            assert!(with_statuses(kind, filter(&[status])).is_err(), "{kind:?}");
        }
    }
}
