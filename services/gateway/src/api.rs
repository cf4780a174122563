//! The HTTP API of the gateway: all routes behind one middleware, and their OpenAPI documents.
//!
//! Two kinds of credential open two sets of routes, and neither opens the other:
//! - API keys of clients and operators open `/v1`.
//! - Run tokens of runners open `/host/v1`.

pub mod openapi;

#[cfg_attr(not(feature = "console"), path = "api/without_console.rs")]
mod console;
mod cors;
mod docs;
mod health;
mod middleware;
mod static_files;

use std::sync::Arc;

pub use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::response::Redirect;
use axum::routing::get;

use middleware::RequestMiddleware;
use web::error::routing::{no_method, no_route};
use web::state::ApiState;

/// Builds the router of all routes. Errors outside handlers use the common error body, too.
pub fn router(state: ApiState) -> Router {
    let (router, document) = openapi::documented().split_for_parts();
    let middleware = Arc::new(RequestMiddleware::before(&document, &state));
    let cors = (!state.cors_origins.is_empty()).then(|| cors::cors(&state.cors_origins));
    let router = router
        .merge(pages(&state))
        .fallback(async || no_route())
        .method_not_allowed_fallback(async || no_method())
        .layer(from_fn_with_state(middleware, middleware::pass))
        .with_state(state);
    match cors {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// Pages for browsers. `/` leads to the console, or to the documents if there is none. Redirects are relative, because
/// a proxy may serve the gateway under a path prefix.
fn pages(state: &ApiState) -> Router<ApiState> {
    let pages = docs::page();
    if state.has_console {
        return pages
            .merge(console::page())
            .route("/", get(async || Redirect::temporary("console/")));
    }
    pages.route("/", get(async || Redirect::temporary("docs/")))
}
