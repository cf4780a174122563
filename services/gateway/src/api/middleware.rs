//! Middleware for all requests and responses.
//!
//! It is a single layer because axum clones every layer, and all layers beneath it, for each request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt as _;
use http::header::{
    CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, HeaderValue, TRANSFER_ENCODING,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Method};
use utoipa::openapi::OpenApi;

use client_api::client::body_files::event_body_limit;
use domain::knowledge::MAX_DOCUMENT_BYTES;
use host_api::results;
use host_api::wire_face::WireFace;
use telemetry::metrics;
use web::error::body::{chunked_twice, encoded_body, unknown_transfer_coding};
use web::error::{ApiError, ApiResult};
use web::host_allowlist::{HostAllowlist, check_host_and_origin, host_header};
use web::json::BodyTimeout;
use web::memory_budget::MemoryBudget;
use web::metrics_page::ServedMethods;
use web::query::WritesWithoutQuery;
use web::response_memory::ResponseBudget;
use web::state::ApiState;

/// State of the middleware.
pub(super) struct RequestMiddleware {
    served: ServedMethods,
    writes: WritesWithoutQuery,
    host_allowlist: Option<HostAllowlist>,
    patience: BodyTimeout,
    memory_budget: MemoryBudget,
    response_memory: ResponseBudget,
}

impl RequestMiddleware {
    /// Builds the middleware for the routes of this document.
    pub(super) fn before(document: &OpenApi, state: &ApiState) -> Self {
        let results = results::body_limit(state.runs.limits().results);
        let event = event_body_limit(state);
        let largest = MAX_DOCUMENT_BYTES.max(results).max(event);
        Self {
            served: ServedMethods::of(document),
            writes: WritesWithoutQuery::of(document),
            host_allowlist: state.host_allowlist.clone(),
            patience: BodyTimeout(state.body),
            memory_budget: MemoryBudget::of_bodies(state.body_bytes, largest),
            response_memory: ResponseBudget::new(state.answer_bytes),
        }
    }

    /// Rejects requests that no route accepts.
    fn check_request(&self, request: &Request, route: Option<&str>) -> ApiResult<()> {
        refuse_encoded(request.headers())?;
        self.writes.refuse_ignored_query(request, route)?;
        match &self.host_allowlist {
            Some(host_allowlist) => check_host_and_origin(host_allowlist, request),
            None => host_header(request).map(drop),
        }
    }

    async fn answer(&self, mut request: Request, route: Option<&str>, next: Next) -> Response {
        if let Err(refused) = refuse_framed(request.headers()) {
            // The next bytes on this connection may belong to the body.
            let close = [(CONNECTION, HeaderValue::from_static("close"))];
            return (close, refused).into_response();
        }
        if let Err(refused) = self.check_request(&request, route) {
            return refused.into_response();
        }
        // Before the handlers, which read the credential from `Authorization` only.
        if let Some(face) = WireFace::at(request.uri())
            && let Err(refused) = face.normalize_credential(request.headers_mut())
        {
            return refused.into_response();
        }
        request.extensions_mut().insert(self.patience);
        request.extensions_mut().insert(self.memory_budget.clone());
        let memory = self.response_memory.permit_for(request.method());
        request.extensions_mut().insert(memory.clone());
        memory.keep(next.run(request).await).await
    }

    fn count(&self, method: &Method, route: Option<&str>, response: &Response, began: Instant) {
        let is_served = route.is_some_and(|route| self.served.serves(route, method));
        let method = is_served.then_some(method.as_str());
        metrics::answered(route, method, response.status().as_u16(), began.elapsed());
    }
}

/// Checks a request, runs its handler, and counts the response by route template. A panic in a handler fails
/// only its own request.
pub(super) async fn pass(
    State(middleware): State<Arc<RequestMiddleware>>,
    request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let matched = request.extensions().get::<MatchedPath>().cloned();
    let route = matched.as_ref().map(MatchedPath::as_str);
    let face = WireFace::at(request.uri());
    // A panicking handler leaves no shared state but poisoned locks, which recover.
    let answering = AssertUnwindSafe(middleware.answer(request, route, next)).catch_unwind();
    let mut response = answering
        .await
        .unwrap_or_else(|_| ApiError::panicked().into_response());
    if let Some(face) = face {
        response = face.in_wire_format(response);
    }
    let headers = response.headers_mut();
    for (name, value) in [
        (CACHE_CONTROL, "no-store"),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ] {
        headers
            .entry(name)
            .or_insert(HeaderValue::from_static(value));
    }
    middleware.count(&method, route, &response, began);
    response
}

/// Accepts only `chunked` as transfer coding (RFC 9112 §6.1). hyper treats every list of codings that ends with
/// `chunked` as chunked; a proxy in front may not.
fn refuse_framed(headers: &HeaderMap) -> ApiResult<()> {
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(first) = lines.next() else {
        return Ok(());
    };
    let is_chunked = |coding: &str| coding.trim().eq_ignore_ascii_case("chunked");
    let codings = std::iter::once(first).chain(lines);
    let codings: Vec<_> = codings
        .flat_map(|line| line.to_str().unwrap_or("?").split(','))
        .collect();
    match codings.as_slice() {
        [coding] if is_chunked(coding) => Ok(()),
        codings if codings.iter().all(|coding| is_chunked(coding)) => Err(chunked_twice()),
        _ => Err(unknown_transfer_coding()),
    }
}

/// Rejects compressed bodies: the gateway neither unpacks them nor stores them packed.
fn refuse_encoded(headers: &HeaderMap) -> ApiResult<()> {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    if encodings.all(|encoding| encoding == "identity") {
        Ok(())
    } else {
        Err(encoded_body())
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn_with_state;
    use axum::routing::get;
    use http::{StatusCode, Version};
    use tower::ServiceExt as _;

    use super::*;

    async fn panics() -> StatusCode {
        panic!("as a handler may");
    }

    /// Runs a request through the middleware without an allow-list.
    async fn send_request(request: Request) -> Response {
        let document = OpenApi::default();
        let middleware = Arc::new(RequestMiddleware {
            served: ServedMethods::of(&document),
            writes: WritesWithoutQuery::of(&document),
            host_allowlist: None,
            patience: BodyTimeout::default(),
            memory_budget: MemoryBudget::of_bodies(1024, 1024),
            response_memory: ResponseBudget::new(1024),
        });
        let router = Router::new()
            .route("/", get(async || StatusCode::OK))
            .route("/panics", get(panics))
            .layer(from_fn_with_state(middleware, pass));
        router.oneshot(request).await.unwrap()
    }

    fn request(path: &str, version: Version, headers: &[(&str, &str)]) -> Request {
        let mut request = Request::builder().uri(path).version(version);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn handler_panic_fails_only_its_request() {
        let asking = request("/panics", Version::HTTP_11, &[("host", "a")]);
        let answer = send_request(asking).await;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(answer.headers()[CACHE_CONTROL], "no-store");
        assert_eq!(answer.headers()[X_CONTENT_TYPE_OPTIONS], "nosniff");
    }

    #[tokio::test]
    async fn requires_one_host_header_without_allowlist() {
        let (host, twice) = ([("host", "a")], [("host", "a"), ("host", "a")]);
        for (version, headers, status) in [
            (Version::HTTP_11, &host[..], StatusCode::OK),
            (Version::HTTP_11, &[], StatusCode::BAD_REQUEST),
            (Version::HTTP_11, &twice, StatusCode::BAD_REQUEST),
            (Version::HTTP_10, &host, StatusCode::OK),
            (Version::HTTP_10, &[], StatusCode::OK),
            (Version::HTTP_10, &twice, StatusCode::BAD_REQUEST),
        ] {
            let answer = send_request(request("/", version, headers)).await;
            assert_eq!(answer.status(), status, "{version:?} {headers:?}");
        }
    }

    #[test]
    fn accepts_chunked_once_and_no_other_coding() {
        let check = |lines: &[&'static str], expected: Option<u16>| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(TRANSFER_ENCODING, HeaderValue::from_static(line));
            }
            let refused = refuse_framed(&headers).err();
            let status = refused.map(|refused| refused.into_parts().0);
            assert_eq!(status, expected, "{lines:?}");
        };
        check(&[], None);
        check(&["chunked"], None);
        check(&[" Chunked "], None);
        check(&["chunked, chunked"], Some(400));
        check(&["chunked", "chunked"], Some(400));
        check(&["gzip, chunked"], Some(501));
        check(&["gzip", "chunked"], Some(501));
        check(&["identity, chunked"], Some(501));
        check(&["chunked;q=1"], Some(501));
        check(&["chunked,"], Some(501));
        check(&["", "chunked"], Some(501));
    }
}
