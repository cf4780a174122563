//! The HTTP API of the gateway. Only this module and `http_server` use axum.
//!
//! Two kinds of credential open two sets of routes, and neither opens the other:
//! - API keys of clients and operators open `/v1`.
//! - Run tokens of runners open `/host/v1`.

pub mod http_server;
pub mod metrics_page;
pub mod openapi;
pub mod rehearsal;

mod admin;
mod answers;
mod artifact_content;
mod artifact_upload;
mod auth;
mod calls_in_progress;
mod catalog_work;
mod client;
mod docs;
mod drain;
mod error;
mod gate;
mod health;
mod host;
mod host_call;
mod json;
mod kept_call;
mod knowledge;
mod large_result;
mod names;
mod query;
mod recheck;
mod refusals;
mod room;
mod run_pages;
mod skill_registrar;
mod state;
mod stream;
mod stream_places;
mod transcript;
mod view;
mod watched_keys;

use std::sync::Arc;

pub use axum::Router;
use axum::middleware::from_fn_with_state;

use error::routing::{no_method, no_route};
use gate::Gate;
pub use names::OwnNames;
pub use state::{Api, ApiState};

/// Builds the router of all routes. Errors outside handlers use the common error body, too.
pub fn router(state: ApiState) -> Router {
    let (router, document) = openapi::documented().split_for_parts();
    let gate = Arc::new(Gate::before(&document, &state));
    router
        .merge(docs::page())
        .fallback(async || no_route())
        .method_not_allowed_fallback(async || no_method())
        .layer(from_fn_with_state(gate, gate::pass))
        .with_state(state)
}
