//! Whether the gateway lives and takes work, and the documents that anybody may read.

use std::sync::LazyLock;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::response::IntoResponse;
use http::StatusCode;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use store::Condition;

use crate::{ApiState, openapi};

/// What a health check says.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Health {
    /// `ok`, `stopping`, `database_unreachable` or `database_takes_no_writes`: its disk is full, for example.
    status: &'static str,
}

/// Says that the process lives.
#[utoipa::path(get, path = "/healthz", tag = "operation", responses(
    (status = 200, description = "The process lives", body = Health)))]
pub(super) async fn healthz() -> Json<Health> {
    Json(Health { status: "ok" })
}

/// Says whether the gateway takes new runs.
#[utoipa::path(get, path = "/readyz", tag = "operation", responses(
    (status = 200, description = "Ready", body = Health),
    (status = 503, description = "Stopping, or the database does not answer or takes no writes", body = Health)))]
pub(super) async fn readyz(State(state): State<ApiState>) -> (StatusCode, Json<Health>) {
    let unready = |status| (StatusCode::SERVICE_UNAVAILABLE, Json(Health { status }));
    if state.runs.stopping().is_cancelled() {
        return unready("stopping");
    }
    match state.runs.store().condition().await {
        Condition::Sound => (StatusCode::OK, Json(Health { status: "ok" })),
        Condition::TakesNoWrites => unready("database_takes_no_writes"),
        Condition::Unreachable => unready("database_unreachable"),
    }
}

/// The public keys of run tokens: the one that signs, the next one ten minutes before it does, and
/// those whose tokens may still be good.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "operation", responses(
    (status = 200, description = "A JSON Web Key Set", body = Object)))]
pub(super) async fn jwks(State(state): State<ApiState>) -> impl IntoResponse {
    // Shorter than a new key is shown before it signs (`domain::signing_key::LEAD_MS`).
    let cache = HeaderValue::from_static("public, max-age=300");
    (
        [(CACHE_CONTROL, cache)],
        Json(serde_json::json!(state.runs.tokens().jwks())),
    )
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", tag = "operation", responses(
    (status = 200, description = "OpenAPI 3.1", body = Object)))]
pub(super) async fn openapi_json() -> impl IntoResponse {
    // Made once: to make it takes thousands of times what a request costs who sends it, and it is for everybody.
    static DOCUMENT: LazyLock<Bytes> = LazyLock::new(|| {
        let document = serde_json::to_vec(&serde_json::json!(openapi::gateway_document()));
        document.expect("a document has string keys only").into()
    });
    let json = HeaderValue::from_static("application/json");
    ([(CONTENT_TYPE, json)], DOCUMENT.clone())
}
