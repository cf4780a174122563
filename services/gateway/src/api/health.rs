//! Health checks and public keys.

use axum::Json;
use axum::extract::State;
use axum::response::IntoResponse;
use http::StatusCode;
use http::header::{CACHE_CONTROL, HeaderValue};
use serde::Serialize;
use store::DatabaseCondition;

use web::state::ApiState;

/// The result of a health check.
#[derive(Serialize, utoipa::ToSchema)]
pub(super) struct Health {
    /// `ok`, `stopping`, `database_unreachable` or `database_takes_no_writes` (for example, the disk is
    /// full, or PostgreSQL is a standby).
    status: &'static str,
    /// Number of pauses by operators. Absent without one, and while not ready. A paused gateway accepts events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pauses: Option<usize>,
}

impl Health {
    fn of(status: &'static str) -> Self {
        Self {
            status,
            pauses: None,
        }
    }
}

/// Checks that the process is alive.
///
/// It does not look at the database. Use `GET /readyz` to route traffic.
#[utoipa::path(get, path = "/healthz", tag = "operation", responses(
    (status = 200, description = "The process is alive", body = Health)))]
pub(super) async fn healthz() -> Json<Health> {
    Json(Health::of("ok"))
}

/// Checks whether the gateway accepts new runs.
#[utoipa::path(get, path = "/readyz", tag = "operation", responses(
    (status = 200, description = "Ready", body = Health),
    (status = 503, description = "Shutting down, or the database does not respond or accepts no writes", body = Health)))]
pub(super) async fn readyz(State(state): State<ApiState>) -> (StatusCode, Json<Health>) {
    let unready = |status| (StatusCode::SERVICE_UNAVAILABLE, Json(Health::of(status)));
    // First: a draining gateway may still have a healthy database.
    if state.runs.stopping().is_cancelled() {
        return unready("stopping");
    }
    match state.runs.store().condition().await {
        DatabaseCondition::Healthy => {
            let pauses = Some(state.runs.pauses.current().len()).filter(|count| *count > 0);
            let status = "ok";
            (StatusCode::OK, Json(Health { status, pauses }))
        }
        DatabaseCondition::WritesFail => unready("database_takes_no_writes"),
        DatabaseCondition::Unreachable => unready("database_unreachable"),
    }
}

/// Returns the public keys that verify run tokens, as a JSON Web Key Set.
///
/// The set contains:
/// - the current signing key,
/// - the next one, from ten minutes before it signs,
/// - earlier ones whose tokens may still be valid.
///
/// Cache the set for at most five minutes.
#[utoipa::path(get, path = "/.well-known/jwks.json", tag = "operation", responses(
    (status = 200, description = "A JSON Web Key Set", body = Object)))]
pub(super) async fn jwks(State(state): State<ApiState>) -> impl IntoResponse {
    // Shorter than the time between publishing a key and signing with it (`domain::signing_key::LEAD_MS`).
    let cache = HeaderValue::from_static("public, max-age=300");
    (
        [(CACHE_CONTROL, cache)],
        Json(serde_json::json!(state.runs.tokens().jwks())),
    )
}
