//! The wait that a busy gateway asks for.

use std::time::Duration;

use egress::Response;
use http::StatusCode;
use http::header::RETRY_AFTER;

/// Time after which a busy gateway takes the event. `None`: it is not busy.
pub(super) fn busy_for(response: &Response) -> Option<Duration> {
    let seconds = response.headers().get(RETRY_AFTER);
    let seconds = seconds.and_then(|value| value.to_str().ok()?.parse().ok());
    match (response.status(), seconds) {
        (StatusCode::TOO_MANY_REQUESTS, seconds) => Some(seconds.unwrap_or(1)),
        // A 503 without `Retry-After` is an outage, not a busy gateway.
        (StatusCode::SERVICE_UNAVAILABLE, seconds) => seconds,
        _ => None,
    }
    // Zero would repeat the request in a busy loop.
    .map(|seconds: u64| Duration::from_secs(seconds.max(1)))
}
