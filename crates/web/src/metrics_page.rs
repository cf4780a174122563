//! Request metrics, and the page `/metrics`. The page has a listener of its own and is not part of the API.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use http::Method;
use http::header::{CONTENT_TYPE, HeaderValue};
use metrics_exporter_prometheus::PrometheusHandle;
use utoipa::openapi::{OpenApi, PathItem};

use crate::host_allowlist::{HostAllowlist, check_host_and_origin};
use crate::query::without_wildcards;
use runs::Runs;
use telemetry::process;

const TEXT_FORMAT: HeaderValue =
    HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");

/// Methods of each route template in the document.
pub struct ServedMethods(BTreeMap<String, Vec<Method>>);

impl ServedMethods {
    pub fn of(document: &OpenApi) -> Self {
        let methods = |item: &PathItem| {
            let all = [
                (Method::GET, &item.get),
                (Method::HEAD, &item.get),
                (Method::POST, &item.post),
                (Method::PUT, &item.put),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ];
            let served = all.into_iter().filter(|(_, found)| found.is_some());
            served.map(|(method, _)| method).collect()
        };
        let paths = document.paths.paths.iter();
        Self(
            paths
                .map(|(path, item)| (without_wildcards(path).into_owned(), methods(item)))
                .collect(),
        )
    }

    /// Routes outside the document are read-only.
    pub fn serves(&self, route: &str, method: &Method) -> bool {
        match self.0.get(&*without_wildcards(route)) {
            Some(methods) => methods.contains(method),
            None => [Method::GET, Method::HEAD].contains(method),
        }
    }
}

/// Serves `GET /metrics` and no other route. With `host_allowlist`, only under these hosts.
pub fn router(
    runs: Runs,
    handle: PrometheusHandle,
    host_allowlist: Option<HostAllowlist>,
) -> Router {
    let page = async move || {
        runs.gauges.process_gauges().show();
        let text = handle.render() + &process::render();
        ([(CONTENT_TYPE, TEXT_FORMAT)], text)
    };
    let router = Router::new().route("/metrics", get(page));
    match host_allowlist {
        Some(host_allowlist) => router.layer(from_fn_with_state(
            Arc::new(host_allowlist),
            check_allowlist,
        )),
        None => router,
    }
}

async fn check_allowlist(
    State(host_allowlist): State<Arc<HostAllowlist>>,
    request: Request,
    next: Next,
) -> Response {
    match check_host_and_origin(&host_allowlist, &request) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}
