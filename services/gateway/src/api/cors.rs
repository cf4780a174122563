//! Cross-origin requests of web pages (CORS). Denied unless the operator lists the page's origin.

use std::time::Duration;

use http::Method;
use http::header::{
    ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, HeaderName, HeaderValue,
    IF_MATCH, LOCATION, RANGE, RETRY_AFTER,
};
use tower_http::cors::{AllowOrigin, CorsLayer};

/// Time for which browsers may cache the answer to a preflight request.
const PREFLIGHT_LIFE: Duration = Duration::from_hours(1);

/// Allows these exact origins on the routes of API keys. Browsers send no cookies: the only credential is the
/// `Authorization` header, which the page sets itself.
pub(super) fn cors(origins: &[String]) -> CorsLayer {
    let origins: Vec<_> = origins
        .iter()
        .map(|origin| origin.as_bytes().to_vec())
        .collect();
    let allows = move |origin: &HeaderValue, request: &http::request::Parts| {
        // The host API is for runners: no web page has a reason to call it.
        request.uri.path().starts_with("/v1/") && origins.iter().any(|one| one == origin.as_bytes())
    };
    let own = HeaderName::from_static;
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(allows))
        .allow_methods([Method::GET, Method::POST, Method::PUT, Method::DELETE])
        .allow_headers([
            ACCEPT,
            AUTHORIZATION,
            CACHE_CONTROL,
            CONTENT_TYPE,
            IF_MATCH,
            RANGE,
            own("a2a-version"),
            own("idempotency-key"),
            own("last-event-id"),
            own("traceparent"),
        ])
        // Scripts see only safelisted headers without this list.
        .expose_headers([
            CONTENT_RANGE,
            LOCATION,
            RETRY_AFTER,
            own("idempotent-replayed"),
            own("runnel-run-id"),
        ])
        .max_age(PREFLIGHT_LIFE)
}
