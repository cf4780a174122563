//! The answer that is a stream of a run.

use axum::body::Body;
use axum::response::Response;
use futures_util::StreamExt;
use http::HeaderMap;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use protocol::id::{ApiKeyId, RunId, WorkspaceId};

use crate::api::ApiState;
use crate::api::auth::ClientCaller;

/// Whether the caller asks for server-sent events.
pub(super) fn wants_stream(headers: &HeaderMap) -> bool {
    headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|range| range.split(';').next())
        .any(|range| range.trim().eq_ignore_ascii_case("text/event-stream"))
}

/// The run's frames after `cursor`. A response only watches: closing it changes nothing. It ends early
/// once the caller's key has been revoked.
pub(super) fn stream_run(
    state: &ApiState,
    caller: &ClientCaller,
    run: RunId,
    cursor: u64,
) -> Response {
    let frames = state.runs.watch(run, cursor, state.heartbeat);
    let revoked = revoked(state.clone(), caller.workspace.clone(), caller.key);
    let frames = frames.take_until(Box::pin(revoked));
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

/// Ends when the key opens nothing any more; looked at as often as a quiet stream shows that it lives.
async fn revoked(state: ApiState, workspace: WorkspaceId, key: ApiKeyId) {
    loop {
        tokio::time::sleep(state.heartbeat).await;
        let store = state.runs.store();
        match store.find_api_key_by_id(&workspace, key).await {
            Ok(Some(record)) if record.revoked_at.is_none() => {}
            Ok(_) => return,
            // The database does not answer: nothing new is shown either.
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(error, "the key of a stream could not be looked up");
            }
        }
    }
}
