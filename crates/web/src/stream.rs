//! Event stream responses.

use axum::body::{Body, Bytes};
use axum::response::Response;
use domain::api_key::AgentReach;
use futures_util::{Stream, StreamExt};
use http::HeaderMap;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue};
use protocol::id::{ApiKeyId, RunId, WorkspaceId};
use store::StoreError;

use crate::key_revocation::until_revoked;
use crate::state::ApiState;
use crate::stream_limit::ConcurrencySlot;
use runs::watch::WatchFrom;

/// True if `Accept` prefers server-sent events over JSON.
pub fn wants_stream(headers: &HeaderMap) -> bool {
    let json = quality(headers, "application/json");
    quality(headers, "text/event-stream")
        .is_some_and(|stream| stream > 0.0 && json.is_none_or(|json| stream >= json))
}

/// The quality value of a media type in `Accept`; 0 excludes it.
fn quality(headers: &HeaderMap, media_type: &str) -> Option<f32> {
    let values = headers.get_all(ACCEPT).iter();
    let values = values.filter_map(|value| value.to_str().ok());
    let named = values
        .flat_map(|value| value.split(','))
        .filter_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let is_named = parts.next()?.eq_ignore_ascii_case(media_type);
            is_named.then(|| weight(parts))
        });
    named.reduce(f32::max)
}

/// The `q` parameter of a range. Default, also for a malformed one: 1.
fn weight<'a>(mut parameters: impl Iterator<Item = &'a str>) -> f32 {
    let weight = parameters.find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let is_weight = name.trim().eq_ignore_ascii_case("q");
        is_weight.then(|| value.trim().parse().ok())?
    });
    weight
        .filter(|weight| (0.0..=1.0).contains(weight))
        .unwrap_or(1.0)
}

/// Streams the frames of a run after `from`. Closing the stream does not affect the run.
pub fn stream_run(
    state: &ApiState,
    workspace: &WorkspaceId,
    key: ApiKeyId,
    run: RunId,
    from: WatchFrom,
    slot: ConcurrencySlot,
) -> Response {
    let frames = run_frames(state, workspace, key, run, from, slot);
    event_stream(Body::from_stream(frames))
}

/// The frames of a run after `from`, until its end or the revocation of the key.
pub fn run_frames(
    state: &ApiState,
    workspace: &WorkspaceId,
    key: ApiKeyId,
    run: RunId,
    from: WatchFrom,
    slot: ConcurrencySlot,
) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + use<> {
    let frames = state.runs.streams.watch(run, from, state.heartbeat);
    until_key_revoked(state, workspace, key, slot, frames)
}

/// Streams the changes of the workspace in the agents that the caller may see.
pub fn stream_feed(
    state: &ApiState,
    workspace: &WorkspaceId,
    key: ApiKeyId,
    reach: AgentReach,
    slot: ConcurrencySlot,
) -> Response {
    let frames = state.runs.feed.watch(workspace, reach, state.heartbeat);
    let frames = until_key_revoked(state, workspace, key, slot, frames);
    event_stream(Body::from_stream(frames))
}

/// The frames until the key is revoked or has expired.
fn until_key_revoked<S: Stream<Item = Result<Bytes, StoreError>> + Send + 'static>(
    state: &ApiState,
    workspace: &WorkspaceId,
    key: ApiKeyId,
    slot: ConcurrencySlot,
    frames: S,
) -> impl Stream<Item = Result<Bytes, StoreError>> + Send + use<S> {
    let (keys, runs) = (state.key_revocation().clone(), state.runs.clone());
    // Ends the stream within two seconds after the revocation or expiry of its key.
    let revoked = until_revoked(keys, runs, workspace.clone(), key);
    frames.take_until(Box::pin(revoked)).map(move |frame| {
        // The slot of the key's stream limit, held until the stream is dropped.
        let _slot = &slot;
        frame
    })
}

/// Builds a response of server-sent events.
pub fn event_stream(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(
        CACHE_CONTROL,
        HeaderValue::from_static("no-cache, no-transform"),
    );
    // nginx would buffer the stream otherwise.
    headers.insert(
        HeaderName::from_static("x-accel-buffering"),
        HeaderValue::from_static("no"),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_only_when_accept_prefers_event_stream() {
        for (accept, expected) in [
            (&["text/event-stream"][..], true),
            (&["Text/Event-Stream; charset=utf-8"], true),
            (&["application/json, text/event-stream"], true),
            (&["application/json;q=0.5, text/event-stream;q=0.5"], true),
            (&["application/json", "text/event-stream"], true),
            (&["text/event-stream;q=0.1, */*"], true),
            (&["text/event-stream;q=odd"], true),
            (&["application/json, text/event-stream;q=0.9"], false),
            (&["text/event-stream;q=0"], false),
            (&["text/event-stream; Q = 0.000"], false),
            (&["application/json"], false),
            (&["*/*"], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for value in accept {
                headers.append(ACCEPT, HeaderValue::from_static(value));
            }
            assert_eq!(wants_stream(&headers), expected, "{accept:?}");
        }
    }
}
