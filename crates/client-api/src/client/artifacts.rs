//! Artifacts, for clients.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use futures_util::TryStreamExt as _;
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::host_api::ArtifactMetadata;
use store::ArtifactOrigin;

use runs::artifacts::{ArtifactOwner, UPLOAD_TIMEOUT};
use web::artifact_content::ServedRange;
use web::artifact_upload::{UploadQuery, metadata, read};
use web::auth::{AdminCaller, ClientCaller, ScopedCaller};
use web::binary::Binary;
use web::error::{ApiError, ApiResult};
use web::query::{PathOf, QueryOf};
use web::recheck::StreamedBody;
use web::state::ApiState;

/// Uploads a file for an event.
///
/// The event refers to it in `input`: by an attachment `{"artifact_id": ID}`, or by `artifact:ID` in place of a
/// URL. The artifact then belongs only to that event, and the event's runs read it without a grant. An unused
/// upload is visible to the workspace's clients until it expires.
#[utoipa::path(post, path = "/v1/artifacts", tag = "client", security(("api_key" = [])), params(UploadQuery),
    request_body(content = inline(Binary), content_type = "application/octet-stream", description = "The bytes, of any type"), responses(
    (status = 201, description = "Stored", body = ArtifactMetadata),
    (status = 400, description = "The name or `expires_in` is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key, or it was revoked before the body ended", body = ErrorBody),
    (status = 403, description = "The API key is restricted to agents (`details.reason`: key_agents)", body = ErrorBody),
    (status = 408, description = "The body was not complete in time", body = ErrorBody),
    (status = 413, description = "The artifact is too large, or storage is full (`details.reason`: workspace_full, uploads_share)", body = ErrorBody),
    (status = 415, description = "The media type is not accepted, or the body has a `Content-Encoding`", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: key_uploads. Retry after `Retry-After` seconds", body = ErrorBody),
    (status = 503, description = "The artifact store does not respond", body = ErrorBody)))]
pub(crate) async fn upload_artifact(
    caller: ClientCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<UploadQuery>,
    headers: HeaderMap,
    mut body: StreamedBody,
) -> ApiResult<(StatusCode, Json<ArtifactMetadata>)> {
    let stored = store(&state, &caller, query, &headers, &mut body).await;
    if stored.is_err() {
        // Clients read no response while they send, so discard the rest of the body within limits.
        body.discard_body().await;
    }
    stored.map(|metadata| (StatusCode::CREATED, Json(metadata)))
}

async fn store(
    state: &ApiState,
    caller: &ClientCaller,
    query: UploadQuery,
    headers: &HeaderMap,
    body: &mut StreamedBody,
) -> ApiResult<ArtifactMetadata> {
    // Held until the end of the upload: one key must not take all slots.
    let _upload_slot = state.upload_limit().enter(caller.key)?;
    let origin = ArtifactOrigin::Client;
    let new = query.announced(headers, caller.workspace.clone(), origin, None)?;
    let mut upload = state.runs.artifacts.upload(new)?;
    if let Err(refused) = read(&mut upload, body, UPLOAD_TIMEOUT).await {
        // Marks the upload as aborted, so that the next sweep releases its reservation.
        upload.give_up(None).await?;
        return Err(refused);
    }
    let uploaded = upload.finish(ArtifactOwner::default(), |_| None).await?;
    let (owner, now) = (ArtifactOwner::default(), state.runs.clock().now_seconds());
    Ok(metadata(uploaded, origin, None, owner, now))
}

/// Deletes an artifact.
///
/// Later reads by runs and clients return 404, and its storage is free. The deletion of a run's artifact is
/// recorded in the audit log of the run.
#[utoipa::path(delete, path = "/v1/artifacts/{artifact_id}", tag = "admin", security(("api_key" = [])),
    params(("artifact_id" = String, Path, description = "The artifact")), responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The key is not of role admin", body = ErrorBody),
    (status = 404, description = "No such artifact, or it has expired", body = ErrorBody)))]
pub(crate) async fn delete_artifact(
    caller: AdminCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<StatusCode> {
    let deleted = state
        .runs
        .artifacts
        .delete_artifact(&caller.workspace, &id, caller.key);
    let gone = deleted.await?.then_some(StatusCode::NO_CONTENT);
    gone.ok_or_else(|| ApiError::not_found("artifact", id))
}

/// Retrieves an artifact's metadata.
///
/// Artifacts are files uploaded by runs or clients, or received with an event.
#[utoipa::path(get, path = "/v1/artifacts/{artifact_id}", tag = "client", security(("api_key" = [])),
    params(("artifact_id" = String, Path, description = "The artifact")), responses(
    (status = 200, description = "The metadata", body = ArtifactMetadata),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such artifact, or it has expired", body = ErrorBody)))]
pub(crate) async fn get_artifact(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<ArtifactMetadata>> {
    Ok(Json(caller.find_artifact(&state, &id).await?.metadata))
}

/// Downloads an artifact, or with `Range` a part of it.
///
/// The response is always an attachment, so that browsers do not render untrusted content.
#[utoipa::path(get, path = "/v1/artifacts/{artifact_id}/content", tag = "client", security(("api_key" = [])),
    params(("artifact_id" = String, Path, description = "The artifact"),
        ("Range" = Option<String>, Header, description = "A single range, such as `bytes=0-1023`"),
        ("If-Range" = Option<String>, Header, description = "An `ETag`. If it does not match, the complete content is returned")), responses(
    (status = 200, description = "The bytes. `Content-Type` is that of the stored file", content_type = "application/octet-stream", body = inline(Binary)),
    (status = 206, description = "The requested range", content_type = "application/octet-stream", body = inline(Binary)),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such artifact, or it has expired", body = ErrorBody),
    (status = 416, description = "The range is not satisfiable; `Content-Range` has the size", body = ErrorBody),
    (status = 503, description = "The artifact store does not respond", body = ErrorBody)))]
pub(crate) async fn get_artifact_content(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let artifact = caller.find_artifact(&state, &id).await?;
    let part = ServedRange::of(&headers, &artifact.metadata)?;
    let bytes = state
        .runs
        .artifacts
        .read_artifact(&artifact, part.range())
        .await?;
    Ok(part.answer(&artifact.metadata, bytes.map_err(std::io::Error::other)))
}
