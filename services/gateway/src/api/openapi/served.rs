//! The routes of the documents.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::response::IntoResponse;
use http::header::{CONTENT_TYPE, HeaderValue};
use utoipa::openapi::OpenApi;

use super::{gateway_document, runner_document};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Returns this document.
#[utoipa::path(get, path = "/openapi.json", tag = "operation", responses(
    (status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi_json() -> impl IntoResponse {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| serialized(&gateway_document()));
    ([(CONTENT_TYPE, JSON)], DOCUMENT.clone())
}

/// Returns the document of the API that a runner serves.
#[utoipa::path(get, path = "/openapi/runner.json", tag = "operation", responses(
    (status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn runner_json() -> impl IntoResponse {
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| serialized(&runner_document()));
    ([(CONTENT_TYPE, JSON)], DOCUMENT.clone())
}

/// Serialized once: this costs thousands of times more than a request, and it is the same for every client. In
/// the order of the document, which is the order of use.
pub(crate) fn serialized(document: &OpenApi) -> Bytes {
    let document = serde_json::to_vec(document);
    document.expect("a document has string keys only").into()
}
