//! A build without the console.

use axum::Router;

use web::state::ApiState;

/// No routes: the configuration refuses `server.console = true`.
pub(super) fn page() -> Router<ApiState> {
    Router::new()
}
