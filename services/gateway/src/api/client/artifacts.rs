//! Artifacts of a workspace, for its clients.

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use futures_util::TryStreamExt as _;
use http::HeaderMap;
use protocol::error::ErrorBody;
use protocol::host_api::ArtifactMetadata;

use crate::api::ApiState;
use crate::api::artifact_content::Part;
use crate::api::auth::ClientCaller;
use crate::api::error::{ApiError, ApiResult};
use crate::api::openapi::Binary;
use crate::api::query::PathOf;
use crate::runs::artifacts::Readable;

async fn find(state: &ApiState, caller: &ClientCaller, id: &str) -> ApiResult<Readable> {
    let found = state.runs.artifact_of_workspace(&caller.workspace, id);
    found.await?.ok_or_else(|| ApiError::not_found("artifact"))
}

/// Tells what is known of an artifact: a file that a run uploaded or that came with an event.
#[utoipa::path(get, path = "/v1/artifacts/{artifact_id}", tag = "client", security(("api_key" = [])),
    params(("artifact_id" = String, Path, description = "The artifact")), responses(
    (status = 200, description = "What is known of it", body = ArtifactMetadata),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such artifact, or it has expired", body = ErrorBody)))]
pub(in crate::api) async fn get_artifact(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<ArtifactMetadata>> {
    Ok(Json(find(&state, &caller, &id).await?.metadata))
}

/// Reads an artifact, or with `Range` a part of it.
///
/// It is always an attachment: whoever shows it decides how.
#[utoipa::path(get, path = "/v1/artifacts/{artifact_id}/content", tag = "client", security(("api_key" = [])),
    params(("artifact_id" = String, Path, description = "The artifact"),
        ("Range" = Option<String>, Header, description = "`bytes=0-1023`: one range"),
        ("If-Range" = Option<String>, Header, description = "The `ETag`: of another content, all is sent")), responses(
    (status = 200, description = "The bytes", content_type = "*/*", body = inline(Binary)),
    (status = 206, description = "The part", content_type = "*/*", body = inline(Binary)),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such artifact, or it has expired", body = ErrorBody),
    (status = 416, description = "It has no such part; `Content-Range` tells its size", body = ErrorBody),
    (status = 503, description = "The place of artifacts does not answer", body = ErrorBody)))]
pub(in crate::api) async fn get_artifact_content(
    caller: ClientCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let artifact = find(&state, &caller, &id).await?;
    let part = Part::of(&headers, &artifact.metadata)?;
    let bytes = state.runs.read_artifact(&artifact, part.range()).await?;
    Ok(part.answer(&artifact.metadata, bytes.map_err(std::io::Error::other)))
}
