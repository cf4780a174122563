//! Blob storage, streamed in both directions within the granted areas.

mod upload;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use domain::state::check_prefix;
use futures_util::stream;
use http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, ETAG};
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::host_api::StorageKeys;
use protocol::resources::StorageArea;
use serde::Deserialize;
use serde_json::json;
use store::{AreaAccess, BlobDeleted, BlobRecord, CHUNK_BYTES, DeleteBlob, Store, StoreError};

use keys::cursor::CursorKind;
use runs::call_limits::CallKind;
use upload::Upload;
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::binary::Binary;
use web::error::{ApiError, ApiResult};
use web::query::{PathOf, QueryOf, page_limit};
use web::recheck::StreamedBody;
use web::state::ApiState;

/// Attempts to open a blob that is replaced between the reads of its record and its content.
const OPEN_ATTEMPTS: usize = 3;

/// Checks an area and returns access to it. A denial is audited.
async fn granted_area(
    caller: &RunCaller,
    state: &ApiState,
    call: AuditedCall<'_>,
) -> ApiResult<AreaAccess> {
    let Some(area) = StorageArea::parse(call.resource) else {
        let message = "storage areas are plugin, workspace and binding";
        return Err(ApiError::invalid_argument(message));
    };
    let owner = match caller.grant.snapshot.storage_area(area) {
        Ok(owner) => owner,
        // Only denials are audited here; granted calls write their entry with the size.
        Err(refused) => return caller.granted(state, call, Err(refused)).await,
    };
    Ok(AreaAccess {
        workspace: caller.grant.run.workspace.clone(),
        area,
        owner,
    })
}

fn call<'a>(action: &'static str, area: &'a str) -> AuditedCall<'a> {
    AuditedCall {
        action,
        resource: area,
        operation: "storage",
    }
}

/// Filter, cursor and size of a page of keys.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct StorageQuery {
    /// Only keys with this prefix.
    prefix: Option<String>,
    /// The `next_cursor` of the previous page.
    after_cursor: Option<String>,
    /// 1 to 100, default 50.
    #[param(minimum = 1, maximum = 100)]
    limit: Option<u64>,
}

/// Lists the keys of an area in byte order.
#[utoipa::path(get, path = "/host/v1/storage/{area}", tag = "host", security(("run_token" = [])),
    params(("area" = StorageArea, Path, description = "The storage area"), StorageQuery), responses(
    (status = 200, description = "Keys in byte order", body = StorageKeys),
    (status = 400, description = "A prefix, cursor or limit is not valid", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The area was not granted", body = ErrorBody)))]
pub(crate) async fn list_blobs(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf(area): PathOf<String>,
    QueryOf(query): QueryOf<StorageQuery>,
) -> ApiResult<Json<StorageKeys>> {
    let call = call("storage_list", &area);
    let access = granted_area(&caller, &state, call).await?;
    let limit = page_limit(query.limit)?;
    let prefix = query.prefix.unwrap_or_default();
    check_prefix(&prefix)
        .map_err(|_| ApiError::invalid_argument("`prefix` must be the beginning of a key"))?;
    let workspace = access.workspace.as_str();
    // Part of the signature: a cursor of another area or prefix is rejected.
    let list = json!(["storage", workspace, area, access.owner, prefix]).to_string();
    let cursors = state.runs.cursors();
    let after = match &query.after_cursor {
        None => None,
        Some(cursor) => {
            let position = cursors.decode(CursorKind::Storage, &list, cursor)?;
            Some(String::from_utf8(position).map_err(|_| keys::cursor::InvalidCursor)?)
        }
    };
    caller.record(&state, call, None).await?;
    let store = state.runs.store();
    let mut keys = store
        .state()
        // One more than the page shows whether others follow.
        .list_blob_keys(&access, &prefix, after.as_deref(), limit + 1)
        .await?;
    let has_more = keys.len() as u64 > limit;
    keys.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let last = keys.last().filter(|_| has_more);
    let next_cursor = last.map(|key| cursors.encode(CursorKind::Storage, &list, key.as_bytes()));
    Ok(Json(StorageKeys {
        keys,
        next_cursor,
        has_more,
    }))
}

/// Downloads a blob.
///
/// `Content-Type` is that of its upload, `ETag` its SHA-256.
#[utoipa::path(get, path = "/host/v1/storage/{area}/{*key}", tag = "host", security(("run_token" = [])),
    params(("area" = StorageArea, Path, description = "The storage area"), ("key" = String, Path, description = "Percent-encoded")),
    responses(
    (status = 200, description = "The bytes. `Content-Type` is that of the stored file", content_type = "application/octet-stream", body = inline(Binary)),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The area was not granted", body = ErrorBody),
    (status = 404, description = "No such key", body = ErrorBody)))]
pub(crate) async fn get_blob(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf((area, key)): PathOf<(String, String)>,
) -> ApiResult<Response> {
    let call = call("storage_get", &area);
    caller.checked_key(&state, call, &key).await?;
    let access = granted_area(&caller, &state, call).await?;
    let store = state.runs.store();
    // Read before the audit, whose entry has the size.
    let found = open_blob(store, &access, &key).await?;
    let size = found.as_ref().map_or(0, |(blob, _)| blob.size);
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    store
        .audit_log()
        .audit(caller.audit_entry(&state, call, None, size))
        .await?;
    let (blob, first) = found.ok_or_else(|| ApiError::not_found("key", &key))?;
    let headers = [
        (CONTENT_TYPE, blob.content_type.clone()),
        (CONTENT_LENGTH, blob.size.to_string()),
        (ETAG, format!("\"{}\"", blob.sha256)),
        // The content is untrusted: browsers must not render it in the gateway's origin.
        (CONTENT_DISPOSITION, "attachment".to_owned()),
    ];
    Ok((headers, body_of(store.clone(), &blob, first)).into_response())
}

/// Reads a blob's record and first chunk. Retries if a small blob is replaced in between.
async fn open_blob(
    store: &Store,
    access: &AreaAccess,
    key: &str,
) -> Result<Option<(BlobRecord, Vec<u8>)>, StoreError> {
    for _ in 0..OPEN_ATTEMPTS {
        let Some(blob) = store.state().find_blob(access, key).await? else {
            return Ok(None);
        };
        // Chunks of a replaced blob are deleted, so the record is read again.
        if let Some(first) = store.state().read_chunk(blob.content_id, 0).await? {
            return Ok(Some((blob, first)));
        }
    }
    Err(StoreError::Corrupt {
        column: "storage_chunks.bytes",
        row: key.to_owned(),
    })
}

/// Streams the chunks of a blob, one in memory at a time. A missing chunk aborts the response, whose length then
/// does not match.
fn body_of(store: Store, blob: &BlobRecord, first: Vec<u8>) -> Body {
    let (content, chunks) = (blob.content_id, blob.size.div_ceil(CHUNK_BYTES as u64));
    let rest = stream::try_unfold(1, move |n| {
        let store = store.clone();
        async move {
            if n >= chunks {
                return Ok(None);
            }
            let chunk = store
                .state()
                .read_chunk(content, n)
                .await
                .map_err(std::io::Error::other)?;
            let chunk = chunk.ok_or(std::io::ErrorKind::UnexpectedEof)?;
            Ok::<_, std::io::Error>(Some((Bytes::from(chunk), n + 1)))
        }
    });
    let first = stream::iter([Ok(Bytes::from(first))]);
    Body::from_stream(futures_util::StreamExt::chain(first, rest))
}

/// Writes a blob, optionally under a condition.
///
/// The condition is checked after the upload is complete, in the transaction that replaces the previous blob.
#[utoipa::path(put, path = "/host/v1/storage/{area}/{*key}", tag = "host", security(("run_token" = [])),
    params(("area" = StorageArea, Path, description = "The storage area"), ("key" = String, Path, description = "Percent-encoded"),
        ("If-None-Match" = Option<String>, Header, description = "`*`: write only if the key has no blob"),
        ("If-Match" = Option<String>, Header, description = "An `ETag`: write only if the current blob matches")),
    request_body(content = inline(Binary), content_type = "application/octet-stream", description = "At most 10 MiB, of any type"), responses(
    (status = 204, description = "Stored. `ETag` is its SHA-256"),
    (status = 400, description = "The key or a condition is malformed", body = ErrorBody),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The area was not granted, or the key is reserved", body = ErrorBody),
    (status = 408, description = "The body was not complete in time", body = ErrorBody),
    (status = 412, description = "The condition failed; the blob is unchanged", body = ErrorBody),
    (status = 413, description = "The blob is too large, or the area is full (`details.reason`)", body = ErrorBody),
    (status = 429, description = "The run has four uploads or deletes in progress, or its call rate is too high", body = ErrorBody)))]
pub(crate) async fn put_blob(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf((area, key)): PathOf<(String, String)>,
    headers: HeaderMap,
    mut body: StreamedBody,
) -> ApiResult<Response> {
    let permit = state.runs.calls().begin(&caller.grant, CallKind::Upload);
    if permit.is_err() {
        // Clients read no response while they send.
        body.discard_body().await;
    }
    let _permit = permit?;
    let stored = store_blob(&caller, &state, &area, key, &headers, &mut body).await;
    if stored.is_err() {
        // Clients read no response while they send, so discard the rest of the body within limits.
        body.discard_body().await;
    }
    let tag = [(ETAG, format!("\"{}\"", stored?))];
    Ok((StatusCode::NO_CONTENT, tag).into_response())
}

/// Stores a blob and returns its SHA-256.
async fn store_blob(
    caller: &RunCaller,
    state: &ApiState,
    area: &str,
    key: String,
    headers: &HeaderMap,
    body: &mut StreamedBody,
) -> ApiResult<String> {
    let call = call("storage_set", area);
    let access = granted_area(caller, state, call).await?;
    caller.checked_key(state, call, &key).await?;
    let upload = match Upload::new(caller, state, access, key, headers) {
        Ok(upload) => upload,
        Err(refused) => {
            caller.record(state, call, Some(refused.message())).await?;
            return Err(refused);
        }
    };
    upload.run(body, call).await
}

/// Deletes a blob.
#[utoipa::path(delete, path = "/host/v1/storage/{area}/{*key}", tag = "host", security(("run_token" = [])),
    params(("area" = StorageArea, Path, description = "The storage area"), ("key" = String, Path, description = "Percent-encoded")),
    responses(
    (status = 204, description = "Deleted"),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 403, description = "The area was not granted, or the key is reserved", body = ErrorBody),
    (status = 404, description = "No such key", body = ErrorBody),
    (status = 429, description = "The run has four uploads or deletes in progress, or its call rate is too high", body = ErrorBody)))]
pub(crate) async fn delete_blob(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    PathOf((area, key)): PathOf<(String, String)>,
) -> ApiResult<StatusCode> {
    let call = call("storage_delete", &area);
    let access = granted_area(&caller, &state, call).await?;
    caller.checked_key(&state, call, &key).await?;
    // Deletes share the permits of uploads.
    let _permit = state.runs.calls().begin(&caller.grant, CallKind::Upload)?;
    let delete = DeleteBlob {
        run_id: caller.grant.run.id,
        access,
        key: key.clone(),
        audit: caller.audit_entry(&state, call, None, 0),
    };
    match state.runs.store().write(delete).await? {
        BlobDeleted::Deleted => Ok(StatusCode::NO_CONTENT),
        BlobDeleted::Absent => Err(ApiError::not_found("key", key)),
        BlobDeleted::RunEnded => Err(ApiError::unauthenticated()),
    }
}
