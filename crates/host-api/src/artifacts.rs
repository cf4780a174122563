//! Artifacts of a run, streamed in both directions within the grants of the snapshot.

mod upload;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use domain::authorization::NotGranted;
use futures_util::{Stream, StreamExt as _, stream};
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::host_api::ArtifactMetadata;
use protocol::resources::ArtifactOperation;

use crate::host_call::HostCall;
use blob_store::ArtifactStoreError;
use runs::artifacts::ReadableArtifact;
use runs::call_limits::CallKind;
use web::artifact_content::ServedRange;
use web::artifact_upload::UploadQuery;
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::binary::Binary;
use web::error::{ApiError, ApiResult};
use web::query::{PathOf, QueryOf};
use web::recheck::StreamedBody;
use web::state::ApiState;

/// Audit rule for a file that needs no grant.
const OF_EVENT: &str = "came with an event that this agent had in this conversation";

/// Uploads a file as an artifact. It becomes visible when it is complete.
///
/// `Content-Type` is stored unless the content contradicts it. To announce the file to the client, send a result
/// `artifact.created` with its `artifact_id`.
#[utoipa::path(post, path = "/host/v1/artifacts", tag = "host", security(("run_token" = [])), params(UploadQuery),
    request_body(content = inline(Binary), content_type = "application/octet-stream", description = "The bytes, of any type"), responses(
    (status = 201, description = "Stored", body = ArtifactMetadata),
    (status = 400, description = "The name or `expires_in` is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted: artifacts:create", body = ErrorBody),
    (status = 408, description = "The body was not complete in time", body = ErrorBody),
    (status = 413, description = "The artifact is too large, or storage is full (`details.reason`)", body = ErrorBody),
    (status = 415, description = "The media type is not accepted", body = ErrorBody),
    (status = 429, description = "The run has four uploads in progress or 1,000 artifacts, or its call rate is too high", body = ErrorBody),
    (status = 503, description = "The artifact store does not respond", body = ErrorBody)))]
pub(crate) async fn create_artifact(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    QueryOf(query): QueryOf<UploadQuery>,
    headers: HeaderMap,
    mut body: StreamedBody,
) -> ApiResult<(StatusCode, Json<ArtifactMetadata>)> {
    let permit = state.runs.calls().begin(&caller.grant, CallKind::Upload);
    if permit.is_err() {
        // Clients read no response while they send.
        body.discard_body().await;
    }
    let _permit = permit?;
    let stored = upload::store(&caller, &state, query, &headers, &mut body).await;
    if stored.is_err() {
        // Clients read no response while they send, so discard the rest of the body within limits.
        body.discard_body().await;
    }
    stored.map(|metadata| (StatusCode::CREATED, Json(metadata)))
}

/// Begins a call for a granted and visible artifact. All others give the same 404.
pub(super) async fn find(
    caller: &RunCaller,
    state: &ApiState,
    operation: ArtifactOperation,
    id: &str,
) -> ApiResult<(HostCall, ReadableArtifact)> {
    let call = AuditedCall {
        action: match operation {
            ArtifactOperation::Metadata => "artifact_metadata",
            ArtifactOperation::Read => "artifact_read",
            ArtifactOperation::Create => "artifact_create",
        },
        // Invalid ids may be long; cut them for the audit log.
        resource: id.get(..id.len().min(64)).unwrap_or("artifact"),
        operation: operation.as_str(),
    };
    // Not an error yet: granted files, and files of the own event, need no grant.
    let granted = caller.grant.snapshot.artifacts(operation);
    if let Some(file) = state.runs.artifacts.granted_file(&caller.grant, id) {
        let (host_call, ()) = HostCall::begin(caller, state, call, Ok::<_, NotGranted>(())).await?;
        return Ok((host_call, file));
    }
    // Only without a grant: with it, the query below covers these files.
    if granted.is_err()
        && let Some(found) = state
            .runs
            .artifacts
            .artifact_of_event(&caller.grant, id)
            .await?
    {
        let host_call = HostCall::begin_by(caller, state, call, OF_EVENT).await?;
        return Ok((host_call, found));
    }
    let (host_call, ()) = HostCall::begin(caller, state, call, granted).await?;
    match state
        .runs
        .artifacts
        .artifact_of_run(&caller.grant, id)
        .await
    {
        Ok(Some(found)) => Ok((host_call, found)),
        // Absent, expired and invisible artifacts get the same response.
        Ok(None) => host_call.end(Err(ApiError::not_found("artifact", id))),
        Err(error) => host_call.end(Err(error.into())),
    }
}

/// Retrieves an artifact's metadata.
///
/// Visible are artifacts of this run, its event, and earlier runs of the same runner in the same
/// conversation, and granted files. Files of the run's event, and of events of earlier runs of its agent in its
/// conversation, need no grant. Others need `artifacts:metadata`.
#[utoipa::path(get, path = "/host/v1/artifacts/{artifact_id}", tag = "host", security(("run_token" = [])),
    params(("artifact_id" = String, Path, description = "The artifact")), responses(
    (status = 200, description = "The metadata", body = ArtifactMetadata),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted: artifacts:metadata", body = ErrorBody),
    (status = 404, description = "No such artifact is visible to the run, or it has expired", body = ErrorBody)))]
pub(crate) async fn get_artifact_metadata(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<ArtifactMetadata>> {
    let (call, found) = find(&caller, &state, ArtifactOperation::Metadata, &id).await?;
    call.end(Ok(Json(found.metadata)))
}

/// Downloads an artifact, or with `Range` a part of it.
///
/// Files of the run's event, and of events of earlier runs of its agent in its conversation, need no grant.
/// Others need `artifacts:read`.
#[utoipa::path(get, path = "/host/v1/artifacts/{artifact_id}/content", tag = "host", security(("run_token" = [])),
    params(("artifact_id" = String, Path, description = "The artifact"),
        ("Range" = Option<String>, Header, description = "A single range, such as `bytes=0-1023`"),
        ("If-Range" = Option<String>, Header, description = "An `ETag`. If it does not match, the complete content is returned")), responses(
    (status = 200, description = "The bytes. `Content-Type` is that of the stored file", content_type = "application/octet-stream", body = inline(Binary)),
    (status = 206, description = "The requested range", content_type = "application/octet-stream", body = inline(Binary)),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "Not granted: artifacts:read", body = ErrorBody),
    (status = 404, description = "No such artifact is visible to the run, or it has expired", body = ErrorBody),
    (status = 416, description = "The range is not satisfiable; `Content-Range` has the size", body = ErrorBody),
    (status = 503, description = "The artifact store does not respond", body = ErrorBody)))]
pub(crate) async fn read_artifact(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let (call, found) = find(&caller, &state, ArtifactOperation::Read, &id).await?;
    // After `find`: the size of the artifact is known from its metadata only.
    let part = match ServedRange::of(&headers, &found.metadata) {
        Ok(part) => part,
        Err(refused) => return call.end(Err(refused)),
    };
    // Ends with the run: a runner must not read longer than its token is valid.
    let opened = call.within(state.runs.artifacts.read_artifact(&found, part.range()));
    match opened.await {
        Ok(bytes) => {
            let range = part.range();
            let bytes = counted(call, bytes, range.end - range.start);
            Ok(part.answer(&found.metadata, bytes))
        }
        Err(error) => call.end(Err(error)),
    }
}

/// Streams the bytes to the runner and counts them. The call ends with the last byte; the stream ends with the
/// run.
fn counted(
    call: HostCall,
    bytes: impl Stream<Item = Result<Bytes, ArtifactStoreError>> + Send + 'static,
    left: u64,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> + Send + 'static {
    // The client does not poll after the last byte, so end the call now.
    let call = match left {
        0 => {
            // The response is under way; the failure is in the audit log.
            let _ = call.end(Ok(()));
            None
        }
        _ => Some(call),
    };
    stream::unfold((call, Box::pin(bytes), left), async |progress| {
        let (call, mut bytes, left) = progress;
        let mut call = call?;
        match call.within(async { bytes.next().await.transpose() }).await {
            Ok(Some(chunk)) => {
                call.add_bytes(chunk.len());
                let left = left.saturating_sub(chunk.len() as u64);
                let call = if left > 0 {
                    Some(call)
                } else {
                    let _ = call.end(Ok(()));
                    None
                };
                Some((Ok(chunk), (call, bytes, left)))
            }
            // The content is shorter than expected: abort the response.
            Ok(None) => None,
            Err(error) => {
                let io_error = std::io::Error::other(error.message().to_owned());
                // The response is under way; the error ends its stream.
                let _ = call.end::<()>(Err(error));
                Some((Err(io_error), (None, bytes, left)))
            }
        }
    })
}
