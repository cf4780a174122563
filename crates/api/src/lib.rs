//! The HTTP API of the gateway. Only this module and `http_server` use axum.
//!
//! Two kinds of credential open two sets of routes, and neither opens the other:
//! - API keys of clients and operators open `/v1`.
//! - Run tokens of runners open `/host/v1`.

pub mod http_server;
pub mod metrics_page;
pub mod mock_host;
pub mod openapi;

mod admin;
mod artifact_content;
mod artifact_upload;
mod auth;
mod auth_rate_limit;
mod calls_in_progress;
mod catalog_work;
mod client;
mod cors;
mod discard_body;
mod docs;
mod error;
mod health;
mod host;
mod host_allowlist;
mod host_call;
mod idempotent_call;
mod json;
mod key_revocation;
mod knowledge;
mod memory_budget;
mod middleware;
mod query;
mod recheck;
mod response_memory;
mod result_offload;
mod run_pages;
mod skill_registrar;
mod state;
mod stream;
mod stream_limit;
mod transcript;
mod view;

use std::sync::Arc;

pub use axum::Router;
use axum::middleware::from_fn_with_state;

use error::routing::{no_method, no_route};
pub use host_allowlist::HostAllowlist;
use middleware::RequestMiddleware;
pub use state::{ApiOptions, ApiState};

/// Builds the router of all routes. Errors outside handlers use the common error body, too.
pub fn router(state: ApiState) -> Router {
    let (router, document) = openapi::documented().split_for_parts();
    let middleware = Arc::new(RequestMiddleware::before(&document, &state));
    let cors = (!state.cors_origins.is_empty()).then(|| cors::cors(&state.cors_origins));
    let router = router
        .merge(docs::page())
        .fallback(async || no_route())
        .method_not_allowed_fallback(async || no_method())
        .layer(from_fn_with_state(middleware, middleware::pass))
        .with_state(state);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}
