//! The answer that is a stream of a run.

use axum::body::Body;
use axum::response::Response;
use futures_util::StreamExt;
use http::HeaderMap;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use protocol::id::RunId;

use crate::api::ApiState;
use crate::api::auth::ClientCaller;
use crate::api::watched_keys::until_revoked;
use crate::runs::watch::WatchFrom;

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

/// The run's frames behind `from`. A response only watches: closing it changes nothing. It ends early
/// within two seconds of the revocation of the caller's key.
pub(super) fn stream_run(
    state: &ApiState,
    caller: &ClientCaller,
    run: RunId,
    from: WatchFrom,
) -> Response {
    let frames = state.runs.watch(run, from, state.heartbeat);
    let revoked = until_revoked(state.clone(), caller.workspace.clone(), caller.key);
    let frames = frames.take_until(Box::pin(revoked));
    event_stream(Body::from_stream(frames))
}

/// An answer of server-sent events.
pub(super) fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
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
