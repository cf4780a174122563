//! HTTP entering us: the only room that knows axum.
//!
//! Three faces with three kinds of credential that never work on each other's routes: clients and
//! operators by API key under `/v1`, runners by run token under `/host/v1`.

pub mod openapi;
pub mod rehearsal;

mod admin;
mod auth;
mod client;
mod docs;
mod error;
mod health;
mod host;
mod json;
mod query;
mod run_pages;
mod stream;
mod transcript;
mod view;

use std::sync::Arc;
use std::time::Duration;

pub use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::runs::Runs;
use error::ApiError;

/// The largest body of any route that names no other bound.
const BODY_BYTES: usize = 1024 * 1024;

/// What handlers work with. Cheap to clone.
#[derive(Clone)]
pub struct ApiState(Arc<Api>);

/// The parts of the state.
pub struct Api {
    pub runs: Runs,
    /// How often a quiet stream shows that it lives.
    pub heartbeat: Duration,
}

impl ApiState {
    pub fn new(api: Api) -> Self {
        Self(Arc::new(api))
    }
}

impl std::ops::Deref for ApiState {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.0
    }
}

/// A header of every answer that does not set it otherwise.
fn header(name: HeaderName, value: &'static str) -> SetResponseHeaderLayer<HeaderValue> {
    SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value))
}

/// Nothing is unpacked here, and nothing packed is kept as if it were not.
async fn refuse_encoded(request: Request, next: Next) -> Response {
    let mut encodings = request.headers().get_all(CONTENT_ENCODING).iter();
    if encodings.all(|encoding| encoding == "identity") {
        next.run(request).await
    } else {
        ApiError::encoded_body().into_response()
    }
}

/// Every route, with its errors in the one envelope.
pub fn router(state: ApiState) -> Router {
    let (router, _) = openapi::documented().split_for_parts();
    router
        .merge(docs::page())
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::no_method())
        .layer(DefaultBodyLimit::max(BODY_BYTES))
        .layer(middleware::from_fn(refuse_encoded))
        .layer(header(CACHE_CONTROL, "no-store"))
        .layer(header(X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(CatchPanicLayer::custom(|_| {
            ApiError::panicked().into_response()
        }))
        .with_state(state)
}
