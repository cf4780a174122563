//! HTTP entering us: the only room that knows axum.
//!
//! Three faces with three kinds of credential that never work on each other's routes: clients and
//! operators by API key under `/v1`, runners by run token under `/host/v1`.

pub mod metrics_page;
pub mod openapi;
pub mod rehearsal;

mod admin;
mod artifact_content;
mod auth;
mod client;
mod docs;
mod drain;
mod error;
mod health;
mod host;
mod host_call;
mod json;
mod kept_call;
mod knowledge;
mod large_result;
mod names;
mod query;
mod refusals;
mod room;
mod run_pages;
mod stream;
mod stream_places;
mod transcript;
mod view;
mod watched_keys;

use std::sync::Arc;
use std::time::Duration;

pub use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::header::{
    CACHE_CONTROL, CONTENT_ENCODING, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS,
};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::set_header::SetResponseHeaderLayer;

use crate::knowledge::Knowledge;
use crate::outbound::tool::Tools;
use crate::runs::Runs;
use domain::knowledge::MOST_DOCUMENT_BYTES;
use error::ApiError;
use host::models::room::room_for_models;
use kept_call::CallsThatGoOn;
pub use names::OwnNames;
use refusals::Refusals;
use room::{BodyRoom, Room};
use stream_places::StreamPlaces;
use watched_keys::WatchedKeys;

/// The largest body of any route that names no other bound.
const BODY_BYTES: usize = 1024 * 1024;

/// What handlers work with. Cheap to clone.
#[derive(Clone)]
pub struct ApiState(Arc<Shared>);

/// The parts of the state.
pub struct Api {
    pub runs: Runs,
    pub tools: Tools,
    pub knowledge: Knowledge,
    /// How often a quiet stream shows that it lives.
    pub heartbeat: Duration,
    /// How long the body of a request may take.
    pub body: Duration,
    /// Connections at once.
    pub connections: usize,
    /// Wrong credentials of one address in ten seconds, before it waits.
    pub most_refusals: u32,
    /// Bytes of requests to models that are in memory at once.
    pub model_bytes: usize,
    /// Bytes of other bodies that are in memory at once.
    pub body_bytes: usize,
    /// What requests may come under; `None`: any name.
    pub own_names: Option<OwnNames>,
}

struct Shared {
    api: Api,
    refusals: Refusals,
    watched_keys: WatchedKeys,
    stream_places: StreamPlaces,
    calls_that_go_on: CallsThatGoOn,
    model_room: Room,
}

impl ApiState {
    pub fn new(api: Api) -> Self {
        Self(Arc::new(Shared {
            refusals: Refusals::new(api.most_refusals),
            watched_keys: WatchedKeys::default(),
            stream_places: StreamPlaces::of(api.connections),
            calls_that_go_on: CallsThatGoOn::default(),
            model_room: room_for_models(api.model_bytes),
            api,
        }))
    }

    fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    fn calls_that_go_on(&self) -> &CallsThatGoOn {
        &self.0.calls_that_go_on
    }

    fn model_room(&self) -> &Room {
        &self.0.model_room
    }

    fn watched_keys(&self) -> &WatchedKeys {
        &self.0.watched_keys
    }

    fn stream_places(&self) -> &StreamPlaces {
        &self.0.stream_places
    }
}

impl std::ops::Deref for ApiState {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.0.api
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
    let (router, document) = openapi::documented().split_for_parts();
    let served = metrics_page::Served::of(&document);
    let writes = query::WritesWithoutQuery::of(&document);
    let patience = axum::Extension(json::BodyPatience(state.body));
    let largest = MOST_DOCUMENT_BYTES.max(host::results::most_bytes(state.runs.limits().results));
    let room = axum::Extension(BodyRoom::new(state.body_bytes, largest));
    let own_names = state.own_names.clone().map(Arc::new);
    let router = router
        .merge(docs::page())
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::no_method())
        .layer(patience)
        .layer(room);
    let router = match own_names {
        Some(names) => router.layer(from_fn_with_state(names, names::refuse_foreign)),
        None => router,
    };
    router
        .layer(from_fn_with_state(writes, query::refuse_ignored_query))
        .layer(middleware::from_fn(refuse_encoded))
        .layer(header(CACHE_CONTROL, "no-store"))
        .layer(header(X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .layer(CatchPanicLayer::custom(|_| {
            ApiError::panicked().into_response()
        }))
        .layer(from_fn_with_state(served, metrics_page::count))
        .with_state(state)
}
