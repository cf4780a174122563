//! The answer that is a stream of a run.

use axum::body::Body;
use axum::response::Response;
use http::HeaderMap;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use protocol::id::RunId;

use crate::api::ApiState;

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

/// The run's frames after `cursor`. A response only watches: closing it changes nothing.
pub(super) fn stream_run(state: &ApiState, run: RunId, cursor: u64) -> Response {
    let frames = state.runs.watch(run, cursor, state.heartbeat);
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
