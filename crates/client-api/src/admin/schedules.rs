//! Schedules and their occurrences (`docs/schedules.md`).

use axum::Json;
use axum::extract::State;
use domain::schedule::{MAX_SCHEDULES, OccurrenceId, SHOWN_DUE_TIMES};
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::id::ScheduleId;
use protocol::run::Page;
use protocol::schedule::{
    OccurrenceList, OccurrenceStatus, Schedule, ScheduleOccurrence, ScheduleSpec,
};
use serde::Deserialize;
use store::{ListPage, OccurrenceRecord, PageBound, SavedSchedule, ScheduleRan, ScheduleRecord};

use crate::admin::endpoints::{name_page, to_page};
use crate::principals::name_keys;
use web::auth::AdminCaller;
use web::error::version::{read_only, version_conflict};
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, if_match};
use web::state::ApiState;

/// Occurrences that the API lists.
const OCCURRENCES: u64 = 100;

fn seconds(at: i64) -> i64 {
    at.div_euclid(1000)
}

async fn shown(
    state: &ApiState,
    caller: &AdminCaller,
    records: Vec<ScheduleRecord>,
) -> ApiResult<Vec<Schedule>> {
    let mut schedules: Vec<_> = records.into_iter().map(view).collect();
    // One query for the names of all keys.
    let principals = schedules.iter_mut().map(|one| &mut one.updated_by);
    name_keys(state, &caller.workspace, caller.role, principals.collect()).await?;
    Ok(schedules)
}

fn view(record: ScheduleRecord) -> Schedule {
    let next = record.next_due_at.zip(record.recurrence());
    // From the stored one on: it is due, even if it has passed.
    let next_due =
        next.map(|(next, recurrence)| recurrence.upcoming(seconds(next) - 1, SHOWN_DUE_TIMES));
    Schedule {
        id: record.id,
        origin: record.origin,
        agent_id: record.agent,
        paused_at: record.paused_at.map(seconds),
        next_due: next_due.unwrap_or_default(),
        version: record.version,
        created_at: seconds(record.created_at),
        updated_at: seconds(record.updated_at),
        updated_by: record.updated_by,
        spec: record.spec,
    }
}

async fn find(state: &ApiState, caller: &AdminCaller, id: ScheduleId) -> ApiResult<ScheduleRecord> {
    let schedules = state.runs.store().agents();
    let found = schedules.find_schedule(&caller.workspace, id).await?;
    found.ok_or_else(|| ApiError::not_found("schedule", id))
}

async fn saved(
    state: &ApiState,
    caller: &AdminCaller,
    id: impl std::fmt::Display,
    saved: SavedSchedule,
) -> ApiResult<Schedule> {
    let record = match saved {
        SavedSchedule::Saved(record) => record,
        SavedSchedule::ReadOnly => return Err(read_only()),
        SavedSchedule::Mismatch(version) => return Err(version_conflict(version)),
        SavedSchedule::Unknown | SavedSchedule::Done => {
            return Err(ApiError::not_found("schedule", id));
        }
        SavedSchedule::Full => {
            let message =
                format!("the workspace has {MAX_SCHEDULES} schedules; delete one of them first");
            return Err(ApiError::conflict("too_many_schedules", message));
        }
    };
    let schedules = shown(state, caller, vec![*record]).await?;
    let schedule = schedules.into_iter().next();
    schedule.ok_or_else(|| ApiError::not_found("schedule", id))
}

/// Creates a schedule.
///
/// At each due time the gateway stores an event `schedule.triggered`, as if it were posted. A workspace has at most 1,000
/// schedules.
#[utoipa::path(post, path = "/v1/schedules", tag = "admin", security(("api_key" = [])), request_body = ScheduleSpec, responses(
    (status = 201, description = "Created, with its next due times", body = Schedule),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "`details.reason`: name_taken, too_many_schedules", body = ErrorBody)))]
pub(crate) async fn create_schedule(
    caller: AdminCaller,
    State(state): State<ApiState>,
    JsonBody(spec): JsonBody<ScheduleSpec>,
) -> ApiResult<(StatusCode, Json<Schedule>)> {
    let schedules = &state.runs.schedules;
    let created = schedules.create(&caller.workspace, spec, caller.stamp(&state));
    let schedule = saved(&state, &caller, "", created.await?).await?;
    tracing::info!(schedule.id = %schedule.id, schedule.name = schedule.spec.name, by = %caller.key,
        "schedule {} was created", schedule.id);
    Ok((StatusCode::CREATED, Json(schedule)))
}

/// Cursor of a list of schedules.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleQuery {
    cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists the schedules of the workspace by name.
#[utoipa::path(get, path = "/v1/schedules", tag = "admin", security(("api_key" = [])), params(ScheduleQuery), responses(
    (status = 200, description = "A page", body = Page<Schedule>),
    (status = 400, description = "A cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_schedules(
    caller: AdminCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<ScheduleQuery>,
) -> ApiResult<Json<Page<Schedule>>> {
    let (list, workspace) = ("schedules", &caller.workspace);
    let (after, limit) = name_page(&state, list, workspace, query.cursor, query.limit)?;
    let bound = PageBound::new(limit, &caller.answer);
    let schedules = state.runs.store().agents();
    let found = schedules
        .list_schedules(workspace, after.as_deref(), bound)
        .await?;
    let ListPage { items, has_more } = found;
    let items = shown(&state, &caller, items).await?;
    let found = ListPage { items, has_more };
    // The cursor of the next page has the name of the last schedule.
    let name = |schedule: &Schedule| schedule.spec.name.clone();
    Ok(Json(to_page(&state, list, workspace, found, name)))
}

/// Retrieves a schedule with its next five due times.
#[utoipa::path(get, path = "/v1/schedules/{schedule_id}", tag = "admin", security(("api_key" = [])),
    params(("schedule_id" = String, Path, description = "The schedule")), responses(
    (status = 200, description = "The schedule", body = Schedule),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such schedule", body = ErrorBody)))]
pub(crate) async fn get_schedule(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ScheduleId>,
) -> ApiResult<Json<Schedule>> {
    let record = SavedSchedule::Saved(Box::new(find(&state, &caller, id).await?));
    saved(&state, &caller, id, record).await.map(Json)
}

/// Replaces the settings of a schedule.
///
/// Its due times begin anew, after now. Occurrences that are pending get the new event. With `If-Match` the update
/// applies to that version only.
#[utoipa::path(put, path = "/v1/schedules/{schedule_id}", tag = "admin", security(("api_key" = [])),
    params(("schedule_id" = String, Path, description = "The schedule"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")),
    request_body = ScheduleSpec, responses(
    (status = 200, description = "Changed", body = Schedule),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such schedule", body = ErrorBody),
    (status = 409, description = "The version does not match, the name is taken, or the schedule is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn update_schedule(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ScheduleId>,
    headers: HeaderMap,
    JsonBody(spec): JsonBody<ScheduleSpec>,
) -> ApiResult<Json<Schedule>> {
    let if_match = if_match(&headers)?;
    // A foreign schedule looks like a missing one before its agent is looked up.
    find(&state, &caller, id).await?;
    let schedules = &state.runs.schedules;
    let stamp = caller.stamp(&state);
    let updated = schedules.update(&caller.workspace, id, spec, if_match, stamp);
    saved(&state, &caller, id, updated.await?).await.map(Json)
}

/// Deletes a schedule and its occurrences. Their runs stay.
#[utoipa::path(delete, path = "/v1/schedules/{schedule_id}", tag = "admin", security(("api_key" = [])),
    params(("schedule_id" = String, Path, description = "The schedule"),
        ("If-Match" = Option<i64>, Header, description = "The expected version")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such schedule", body = ErrorBody),
    (status = 409, description = "The version does not match, or the schedule is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn delete_schedule(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ScheduleId>,
    headers: HeaderMap,
) -> ApiResult<StatusCode> {
    let if_match = if_match(&headers)?;
    let schedules = &state.runs.schedules;
    let deleted = schedules.delete(&caller.workspace, id, if_match, caller.stamp(&state));
    match deleted.await? {
        SavedSchedule::Done => Ok(StatusCode::NO_CONTENT),
        refused => Err(match saved(&state, &caller, id, refused).await {
            Err(error) => error,
            Ok(_) => ApiError::not_found("schedule", id),
        }),
    }
}

/// Pauses a schedule, also one of the configuration file.
///
/// Due times of the pause do not run, neither then nor later. Occurrences that are pending still run.
#[utoipa::path(post, path = "/v1/schedules/{schedule_id}/pause", tag = "admin", security(("api_key" = [])),
    params(("schedule_id" = String, Path, description = "The schedule")), responses(
    (status = 200, description = "The paused schedule", body = Schedule),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such schedule", body = ErrorBody)))]
pub(crate) async fn pause_schedule(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ScheduleId>,
) -> ApiResult<Json<Schedule>> {
    let record = find(&state, &caller, id).await?;
    let paused = state.runs.schedules.pause(&record, caller.stamp(&state));
    saved(&state, &caller, id, paused.await?).await.map(Json)
}

/// Ends the pause of a schedule. The next due time is the first one from now on.
#[utoipa::path(post, path = "/v1/schedules/{schedule_id}/resume", tag = "admin", security(("api_key" = [])),
    params(("schedule_id" = String, Path, description = "The schedule")), responses(
    (status = 200, description = "The schedule with its next due times", body = Schedule),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such schedule", body = ErrorBody)))]
pub(crate) async fn resume_schedule(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ScheduleId>,
) -> ApiResult<Json<Schedule>> {
    let record = find(&state, &caller, id).await?;
    let resumed = state.runs.schedules.resume(&record, caller.stamp(&state));
    saved(&state, &caller, id, resumed.await?).await.map(Json)
}

/// Runs a schedule now, also a disabled or paused one. Its due times stay.
///
/// The response has the id of the event; the occurrence lists the run once the event is stored.
#[utoipa::path(post, path = "/v1/schedules/{schedule_id}/run", tag = "admin", security(("api_key" = [])),
    params(("schedule_id" = String, Path, description = "The schedule")), responses(
    (status = 202, description = "The pending occurrence", body = ScheduleOccurrence),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such schedule", body = ErrorBody),
    (status = 409, description = "`details.reason`: too_many_occurrences. 100 occurrences are pending", body = ErrorBody)))]
pub(crate) async fn run_schedule(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ScheduleId>,
) -> ApiResult<(StatusCode, Json<ScheduleOccurrence>)> {
    let record = find(&state, &caller, id).await?;
    let due_at = match state.runs.schedules.run_now(&record).await? {
        ScheduleRan::Queued(due_at) => due_at,
        ScheduleRan::Unknown => return Err(ApiError::not_found("schedule", id)),
        ScheduleRan::Full => {
            let message = "100 occurrences of this schedule are pending; wait for them to run";
            return Err(ApiError::conflict("too_many_occurrences", message));
        }
    };
    // Not read back: a replica may have triggered it by now.
    let queued = OccurrenceRecord {
        due_at,
        is_manual: true,
        status: OccurrenceStatus::Pending,
        reason: None,
        run_id: None,
        run_status: None,
        tries: 0,
        finished_at: None,
    };
    Ok((StatusCode::ACCEPTED, Json(occurrence(id, queued))))
}

/// Lists the newest 100 occurrences of a schedule with their runs, newest first.
#[utoipa::path(get, path = "/v1/schedules/{schedule_id}/occurrences", tag = "admin", security(("api_key" = [])),
    params(("schedule_id" = String, Path, description = "The schedule")), responses(
    (status = 200, description = "The occurrences", body = OccurrenceList),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such schedule", body = ErrorBody)))]
pub(crate) async fn list_schedule_occurrences(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<ScheduleId>,
) -> ApiResult<Json<OccurrenceList>> {
    let record = find(&state, &caller, id).await?;
    // By the id of the schedule that was found, so foreign ids list nothing.
    let schedules = state.runs.store().agents();
    let found = schedules.newest_occurrences(record.id, OCCURRENCES).await?;
    let items = found.into_iter().map(|one| occurrence(id, one)).collect();
    Ok(Json(OccurrenceList { items }))
}

fn occurrence(schedule: ScheduleId, record: OccurrenceRecord) -> ScheduleOccurrence {
    let due_at = record.due_at;
    ScheduleOccurrence {
        event_id: OccurrenceId { schedule, due_at }.event_id(),
        due_at: seconds(due_at),
        manual: record.is_manual,
        status: record.status,
        reason: record.reason,
        run_id: record.run_id,
        run_status: record.run_status,
        tries: record.tries,
        finished_at: record.finished_at.map(seconds),
    }
}
