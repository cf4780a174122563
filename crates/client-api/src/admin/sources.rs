//! Sources: systems that post events (`docs/sources.md`).

use axum::Json;
use axum::extract::State;
use domain::source::MAX_SOURCES;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::id::{DEFAULT_WORKSPACE, SourceId};
use protocol::source::{Source, SourceList, SourceSpec, TriedSource, TrySource};
use protocol::webhook::RotateSecretRequest;
use store::{SavedSource, SourceRecord};

use crate::client::received::{EventFaults, envelope_of};
use crate::principals::name_keys;
use runs::sources::{SourceContent, SourceEvent};
use web::auth::AdminCaller;
use web::error::version::read_only;
use web::error::{ApiError, ApiResult};
use web::json::JsonBody;
use web::query::PathOf;
use web::state::ApiState;

fn seconds(at: i64) -> i64 {
    at.div_euclid(1000)
}

async fn shown(
    state: &ApiState,
    caller: &AdminCaller,
    records: Vec<SourceRecord>,
) -> ApiResult<Vec<Source>> {
    let now = state.runs.clock().now_ms();
    let mut sources: Vec<_> = records
        .into_iter()
        .map(|record| view(record, now))
        .collect();
    let principals = sources.iter_mut().map(|one| &mut one.updated_by);
    name_keys(state, &caller.workspace, caller.role, principals.collect()).await?;
    Ok(sources)
}

fn view(record: SourceRecord, now: i64) -> Source {
    // Names are unique in a workspace only, so other workspaces have the id in their paths.
    let path = if record.workspace.as_str() == DEFAULT_WORKSPACE {
        format!("/in/{}", record.name)
    } else {
        format!("/in/{}", record.id)
    };
    Source {
        id: record.id,
        api_key_id: record.key(),
        path,
        // Only its time: the secret itself is never shown again.
        previous_secret_until: record
            .previous_secret
            .map(|(_, until)| until)
            .filter(|until| *until > now)
            .map(seconds),
        name: record.name,
        origin: record.origin,
        settings: record.settings,
        agents: record.agents,
        enabled: record.enabled,
        secret: None,
        version: record.version,
        created_at: seconds(record.created_at),
        updated_at: seconds(record.updated_at),
        updated_by: record.updated_by,
    }
}

async fn find(state: &ApiState, caller: &AdminCaller, id: SourceId) -> ApiResult<SourceRecord> {
    let access = state.runs.store().access();
    let found = access.find_source(&caller.workspace, id).await?;
    found.ok_or_else(|| ApiError::not_found("source", id))
}

/// The saved source, with its secret if the response shows it.
async fn saved(
    state: &ApiState,
    caller: &AdminCaller,
    id: impl std::fmt::Display,
    saved: SavedSource,
    secret: Option<String>,
) -> ApiResult<Source> {
    let record = match saved {
        SavedSource::Saved(record) => record,
        SavedSource::ReadOnly => return Err(read_only()),
        SavedSource::Unknown | SavedSource::Done => {
            return Err(ApiError::not_found("source", id));
        }
        SavedSource::Full => {
            let message =
                format!("the workspace has {MAX_SOURCES} sources; delete one of them first");
            return Err(ApiError::conflict("too_many_sources", message));
        }
    };
    let sources = shown(state, caller, vec![*record]).await?;
    let source = sources.into_iter().next();
    let source = source.ok_or_else(|| ApiError::not_found("source", id))?;
    Ok(Source { secret, ..source })
}

/// Creates a source.
///
/// It takes requests from the response on, at `path`. The response has the secret, which no later response repeats.
/// Its events have the rights of an API key of role `client` and of `agents`; the key has the id of the source. A
/// workspace has at most 100 sources.
#[utoipa::path(post, path = "/v1/sources", tag = "admin", security(("api_key" = [])), request_body = SourceSpec, responses(
    (status = 201, description = "Created. `secret` is only in this response", body = Source),
    (status = 400, description = "The body is not valid; `details.faults` lists at most eight faults", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 409, description = "`details.reason`: name_taken, too_many_sources", body = ErrorBody)))]
pub(crate) async fn create_source(
    caller: AdminCaller,
    State(state): State<ApiState>,
    JsonBody(spec): JsonBody<SourceSpec>,
) -> ApiResult<(StatusCode, Json<Source>)> {
    let sources = &state.runs.sources;
    let created = sources.create(&caller.workspace, spec, caller.stamp(&state));
    let created = created.await?;
    let source = saved(&state, &caller, "", created.saved, created.secret).await?;
    tracing::info!(source.id = %source.id, source.name = source.name, by = %caller.key,
        "source {} was created", source.id);
    Ok((StatusCode::CREATED, Json(source)))
}

/// Lists the sources of the workspace by name.
#[utoipa::path(get, path = "/v1/sources", tag = "admin", security(("api_key" = [])), responses(
    (status = 200, description = "All items, without secrets", body = SourceList),
    (status = 401, description = "No valid API key", body = ErrorBody)))]
pub(crate) async fn list_sources(
    caller: AdminCaller,
    State(state): State<ApiState>,
) -> ApiResult<Json<SourceList>> {
    let access = state.runs.store().access();
    let records = access.all_sources(&caller.workspace).await?;
    let items = shown(&state, &caller, records).await?;
    Ok(Json(SourceList { items }))
}

/// Retrieves a source.
#[utoipa::path(get, path = "/v1/sources/{source_id}", tag = "admin", security(("api_key" = [])),
    params(("source_id" = String, Path, description = "The source")), responses(
    (status = 200, description = "The source without its secret", body = Source),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such source", body = ErrorBody)))]
pub(crate) async fn get_source(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<SourceId>,
) -> ApiResult<Json<Source>> {
    let record = find(&state, &caller, id).await?;
    let record = SavedSource::Saved(Box::new(record));
    saved(&state, &caller, id, record, None).await.map(Json)
}

/// Deletes a source and revokes its API key.
///
/// Its events and their runs stay.
#[utoipa::path(delete, path = "/v1/sources/{source_id}", tag = "admin", security(("api_key" = [])),
    params(("source_id" = String, Path, description = "The source")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such source", body = ErrorBody),
    (status = 409, description = "The source is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn delete_source(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<SourceId>,
) -> ApiResult<StatusCode> {
    let stamp = caller.stamp(&state);
    let sources = &state.runs.sources;
    match sources.delete(&caller.workspace, id, stamp).await? {
        SavedSource::Done => Ok(StatusCode::NO_CONTENT),
        refused => Err(match saved(&state, &caller, id, refused, None).await {
            Err(error) => error,
            Ok(_) => ApiError::not_found("source", id),
        }),
    }
}

/// Replaces the secret of a source.
///
/// For a day, requests by the new and by the previous secret are accepted. An older one ends at once.
#[utoipa::path(post, path = "/v1/sources/{source_id}/rotate-secret", tag = "admin", security(("api_key" = [])),
    params(("source_id" = String, Path, description = "The source")), request_body = RotateSecretRequest, responses(
    (status = 200, description = "Rotated. `secret` is only in this response", body = Source),
    (status = 400, description = "The secret is not valid, or the scheme requires one", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such source", body = ErrorBody),
    (status = 409, description = "The source is defined in the configuration file", body = ErrorBody)))]
pub(crate) async fn rotate_source_secret(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<SourceId>,
    JsonBody(request): JsonBody<RotateSecretRequest>,
) -> ApiResult<Json<Source>> {
    let record = find(&state, &caller, id).await?;
    let sources = &state.runs.sources;
    let rotating = sources.rotate_secret(&record, request.secret, caller.stamp(&state));
    let rotated = rotating.await?;
    let source = saved(&state, &caller, id, rotated.saved, rotated.secret).await?;
    tracing::info!(source.id = %id, by = %caller.key, "the secret of source {id} was rotated");
    Ok(Json(source))
}

/// Shows the event that a source makes of a request.
///
/// Stores nothing, and checks no signature. Send the body of an encrypting scheme (`feishu`, `wecom`) in plain text.
#[utoipa::path(post, path = "/v1/sources/{source_id}/try", tag = "admin", security(("api_key" = [])),
    params(("source_id" = String, Path, description = "The source")), request_body = TrySource, responses(
    (status = 200, description = "The event, or the faults", body = TriedSource),
    (status = 400, description = "The body is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such source", body = ErrorBody),
    (status = 503, description = "Too many filters run; retry after `Retry-After` seconds", body = ErrorBody)))]
pub(crate) async fn try_source(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<SourceId>,
    JsonBody(request): JsonBody<TrySource>,
) -> ApiResult<Json<TriedSource>> {
    let record = find(&state, &caller, id).await?;
    let content = SourceContent {
        body: request.body.clone().into_bytes(),
        headers: headers_of(&request)?,
        query: request.query.unwrap_or_default(),
    };
    let (event, faults) = match state.runs.sources.event_of(&record, content).await {
        SourceEvent::Event(event) => match envelope_of(event) {
            Ok(event) => (Some(event), Vec::new()),
            Err(EventFaults(faults)) => (None, faults),
        },
        SourceEvent::Nothing => (None, Vec::new()),
        SourceEvent::Fault(fault) => (None, vec![fault]),
        SourceEvent::Busy => return Err(ApiError::unavailable("too many filters run")),
    };
    Ok(Json(TriedSource {
        event: event.map(Box::new),
        faults,
    }))
}

fn headers_of(request: &TrySource) -> ApiResult<HeaderMap> {
    let mut headers = HeaderMap::new();
    for (name, value) in &request.headers {
        let parsed = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
        let (Ok(header), Ok(value)) = parsed else {
            let name = name.replace('~', "~0").replace('/', "~1");
            let fault = Fault::new(format!("/headers/{name}"), "is no header");
            return Err(ApiError::faults(&[fault]));
        };
        headers.append(header, value);
    }
    Ok(headers)
}
