//! Runner endpoints: register, list, refresh and delete (`docs/runners.md`).

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use protocol::admin::{CircuitBreaker, EndpointSpec, RunnerEndpoint};
use protocol::discovery::DiscoveryDiff;
use protocol::error::ErrorBody;
use protocol::id::{EndpointId, WorkspaceId};
use protocol::run::Page;
use serde::{Deserialize, Serialize};
use store::{EndpointRecord, ListPage, SaveEndpoint};

use keys::cursor::CursorKind;
use runs::discovery::DiscoveryFindings;
use web::auth::AdminCaller;
use web::error::version::read_only;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::{PathOf, QueryOf, page_limit};
use web::state::ApiState;

/// Cursor and size of a page sorted by name.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct NameQuery {
    pub(crate) cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    pub(crate) limit: Option<u64>,
}

/// The name before the first item of a page, and the page size.
pub(crate) fn name_page(
    state: &ApiState,
    list: &str,
    workspace: &WorkspaceId,
    cursor: Option<String>,
    limit: Option<u64>,
) -> ApiResult<(Option<String>, u64)> {
    let limit = page_limit(limit)?;
    let Some(cursor) = cursor else {
        return Ok((None, limit));
    };
    // Part of the signature: a cursor of another list or workspace is rejected.
    let list = format!("{list}\n{workspace}");
    let bytes = state
        .runs
        .cursors()
        .decode(CursorKind::Names, &list, &cursor)?;
    let name = String::from_utf8(bytes).map_err(|_| keys::cursor::InvalidCursor)?;
    Ok((Some(name), limit))
}

/// Builds a page sorted by name.
pub(crate) fn to_page<T>(
    state: &ApiState,
    list: &str,
    workspace: &WorkspaceId,
    found: ListPage<T>,
    name: impl Fn(&T) -> String,
) -> Page<T> {
    let ListPage { items, has_more } = found;
    let list = format!("{list}\n{workspace}");
    let next_cursor = items.last().filter(|_| has_more).map(|item| {
        state
            .runs
            .cursors()
            .encode(CursorKind::Names, &list, name(item).as_bytes())
    });
    Page {
        items,
        next_cursor,
        prev_cursor: None,
        total_count: None,
        has_more,
    }
}

fn view(
    record: EndpointRecord,
    header_names: Vec<String>,
    breaker: CircuitBreaker,
) -> RunnerEndpoint {
    // No findings are stored before the first discovery.
    let findings: DiscoveryFindings = serde_json::from_value(record.findings).unwrap_or_default();
    RunnerEndpoint {
        id: record.id,
        name: record.name,
        origin: record.origin,
        base_url: record.base_url,
        mode: record.mode,
        delta_mode: record.delta_mode,
        health: record.health,
        health_reason: record.health_reason,
        secret_set: true,
        secret: None,
        header_names,
        max_runs: record.max_runs,
        breaker,
        discovered_at: record.discovered_at.map(|at| at.div_euclid(1000)),
        next_check_at: Some(record.next_check_at)
            // The maximum means that no check is due.
            .filter(|at| *at < i64::MAX)
            .map(|at| at.div_euclid(1000)),
        accepted: findings.accepted,
        incompatible: findings.incompatible,
        rejected: findings.rejected,
    }
}

fn shown(state: &ApiState, record: EndpointRecord) -> RunnerEndpoint {
    let names = state.runs.endpoints.header_names(&record);
    let now = state.runs.clock().now_ms();
    let breaker = state.runs.breakers().view(record.id, now);
    let seconds = |at: i64| at.div_euclid(1000);
    let breaker = CircuitBreaker {
        state: breaker.circuit.as_str().to_owned(),
        failures: breaker.failures,
        opened_at: breaker.opened_at.map(seconds),
        retry_at: breaker.retry_at.map(seconds),
    };
    view(record, names, breaker)
}

pub(super) async fn find_endpoint(
    state: &ApiState,
    caller: &AdminCaller,
    id: EndpointId,
) -> ApiResult<EndpointRecord> {
    let record = state
        .runs
        .store()
        .endpoints()
        .find_endpoint(&caller.workspace, id)
        .await?;
    record.ok_or_else(|| ApiError::not_found("runner endpoint", id))
}

/// Options of registration and refresh.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct DryRunQuery {
    /// Query the endpoint and return the changes without storing them.
    #[serde(default)]
    dry_run: bool,
}

/// The stored endpoint, or the changes of a dry run.
#[derive(Serialize, utoipa::ToSchema)]
#[serde(untagged)]
pub(crate) enum Refreshed {
    Stored(Box<RunnerEndpoint>),
    DryRun(Box<DiscoveryDiff>),
}

/// Registers an endpoint and queries its runners.
///
/// An endpoint that does not respond is registered, too. With `?dry_run=true` nothing is stored, and the
/// response is the set of changes.
#[utoipa::path(post, path = "/v1/runner-endpoints", tag = "admin", security(("api_key" = [])),
    params(DryRunQuery), request_body = EndpointSpec, responses(
    (status = 200, description = "With `dry_run`: the changes that registration would make", body = DiscoveryDiff),
    (status = 201, description = "Registered. A generated `secret` is only in this response", body = RunnerEndpoint),
    (status = 400, description = "The body is not valid; `details.pointer` locates the fault", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "The name or a runner id is taken", body = ErrorBody)))]
pub(crate) async fn register_runner_endpoint(
    caller: AdminCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<DryRunQuery>,
    JsonBody(spec): JsonBody<EndpointSpec>,
) -> ApiResult<Response> {
    if query.dry_run {
        let diff = state
            .runs
            .endpoints
            .preview_registration(&caller.workspace, &spec)
            .await?;
        return Ok(Json(diff).into_response());
    }
    let registered = state
        .runs
        .endpoints
        .register_endpoint(&caller.workspace, spec, caller.stamp(&state))
        .await?;
    let shown = RunnerEndpoint {
        // The only response with a generated secret.
        secret: registered.made_secret,
        ..shown(&state, registered.record)
    };
    Ok((StatusCode::CREATED, Json(shown)).into_response())
}

/// Lists the runner endpoints.
#[utoipa::path(get, path = "/v1/runner-endpoints", tag = "admin", security(("api_key" = [])), params(NameQuery), responses(
    (status = 200, description = "A page sorted by name", body = Page<RunnerEndpoint>),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_runner_endpoints(
    caller: AdminCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<NameQuery>,
) -> ApiResult<Json<Page<RunnerEndpoint>>> {
    let workspace = &caller.workspace;
    let (after, limit) = name_page(&state, "endpoints", workspace, query.cursor, query.limit)?;
    let found = state
        .runs
        .store()
        .endpoints()
        .list_endpoints(workspace, after.as_deref(), caller.answer.page(limit))
        .await?;
    let found = found.map(|record| shown(&state, record));
    Ok(Json(to_page(
        &state,
        "endpoints",
        workspace,
        found,
        |item| item.name.clone(),
    )))
}

/// Retrieves a runner endpoint.
#[utoipa::path(get, path = "/v1/runner-endpoints/{endpoint_id}", tag = "admin", security(("api_key" = [])),
    params(("endpoint_id" = String, Path, description = "The endpoint")), responses(
    (status = 200, description = "The endpoint", body = RunnerEndpoint),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such endpoint", body = ErrorBody)))]
pub(crate) async fn get_runner_endpoint(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<EndpointId>,
) -> ApiResult<Json<RunnerEndpoint>> {
    let record = find_endpoint(&state, &caller, id).await?;
    Ok(Json(shown(&state, record)))
}

/// Queries an endpoint's runners again.
///
/// If the query fails, the endpoint keeps its last list. With `?dry_run=true` nothing is stored. The response
/// then has the changes of runners and manifests, conflicts with other endpoints, and affected agents.
#[utoipa::path(post, path = "/v1/runner-endpoints/{endpoint_id}/refresh", tag = "admin", security(("api_key" = [])),
    params(("endpoint_id" = String, Path, description = "The endpoint"), DryRunQuery), responses(
    (status = 200, description = "The endpoint with its runners or the reason of the failure. With `dry_run`: the changes", body = Refreshed),
    (status = 400, description = "`dry_run` must be true or false", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such endpoint", body = ErrorBody),
    (status = 409, description = "The endpoint is no longer in the configuration file", body = ErrorBody)))]
pub(crate) async fn refresh_runner_endpoint(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<EndpointId>,
    QueryOf(query): QueryOf<DryRunQuery>,
) -> ApiResult<Json<Refreshed>> {
    let record = find_endpoint(&state, &caller, id).await?;
    // A refresh must not revive an endpoint that has left the configuration file.
    if !record.enabled {
        let why = record.health_reason.unwrap_or_default();
        return Err(ApiError::conflict(
            "disabled",
            format!("the endpoint is disabled: {why}"),
        ));
    }
    if query.dry_run {
        let diff = state.runs.endpoints.preview_refresh(&record).await?;
        return Ok(Json(Refreshed::DryRun(Box::new(diff))));
    }
    state.runs.endpoints.refresh_endpoint(&record).await?;
    // Read again: the refresh has stored health and runners.
    let record = find_endpoint(&state, &caller, id).await?;
    Ok(Json(Refreshed::Stored(Box::new(shown(&state, record)))))
}

/// Deletes an endpoint and its runners. Live runs continue.
#[utoipa::path(delete, path = "/v1/runner-endpoints/{endpoint_id}", tag = "admin", security(("api_key" = [])),
    params(("endpoint_id" = String, Path, description = "The endpoint")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such endpoint", body = ErrorBody),
    (status = 409, description = "The endpoint is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn delete_runner_endpoint(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<EndpointId>,
) -> ApiResult<StatusCode> {
    let stamp = caller.stamp(&state);
    let delete = SaveEndpoint::Delete {
        id,
        workspace: caller.workspace,
    };
    match state.runs.store().change(stamp, delete).await? {
        None => Err(ApiError::not_found("runner endpoint", id)),
        Some(record) if record.origin == "config" => Err(read_only()),
        Some(_) => Ok(StatusCode::NO_CONTENT),
    }
}
