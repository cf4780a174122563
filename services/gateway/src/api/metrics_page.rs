//! What is counted of requests, and the page that shows everything that is counted. The page stands on
//! a listener of its own: it is no route of the API.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::{MatchedPath, Request};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::routing::get;
use http::header::{CONTENT_TYPE, HeaderValue};
use metrics_exporter_prometheus::PrometheusHandle;

use crate::api::names::{OwnNames, refuse_foreign};
use crate::runs::Runs;
use crate::telemetry::{metrics, process};

const TEXT_FORMAT: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Counts an answer by the template of its route.
pub(super) async fn count(request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let route = route.as_ref().map(MatchedPath::as_str);
    let status = response.status().as_u16();
    metrics::answered(route, method.as_str(), status, began.elapsed());
    response
}

/// `GET /metrics`, and nothing else; `names`: only under these.
pub fn router(runs: Runs, handle: PrometheusHandle, names: Option<OwnNames>) -> Router {
    let page = async move || {
        runs.here().show();
        let text = handle.render() + &process::render();
        ([(CONTENT_TYPE, TEXT_FORMAT)], text)
    };
    let router = Router::new().route("/metrics", get(page));
    match names {
        Some(names) => router.layer(from_fn_with_state(Arc::new(names), refuse_foreign)),
        None => router,
    }
}
