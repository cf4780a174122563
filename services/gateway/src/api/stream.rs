//! The answer that is a stream of a run.

use axum::body::Body;
use axum::response::Response;
use futures_util::StreamExt;
use http::HeaderMap;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use protocol::id::RunId;

use crate::api::ApiState;
use crate::api::auth::ClientCaller;
use crate::api::stream_places::StreamPlace;
use crate::api::watched_keys::until_revoked;

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
/// within two seconds of the revocation of the caller's key. It has its place among the key's streams until it is
/// dropped, also by a client that is gone.
pub(super) fn stream_run(
    state: &ApiState,
    caller: &ClientCaller,
    run: RunId,
    cursor: u64,
    place: StreamPlace,
) -> Response {
    let frames = state.runs.watch(run, cursor, state.heartbeat);
    let revoked = until_revoked(state.clone(), caller.workspace.clone(), caller.key);
    let frames = frames.take_until(Box::pin(revoked)).map(move |frame| {
        let _place = &place;
        frame
    });
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
