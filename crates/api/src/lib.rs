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
mod stream;
mod stream_places;
mod transcript;
mod view;
mod watched_keys;

use std::sync::Arc;
use std::time::Duration;

pub use axum::Router;
use axum::middleware::from_fn_with_state;

use ::knowledge::Knowledge;
use error::ApiError;
use gate::Gate;
use host::models::room::room_for_models;
use kept_call::CallsThatGoOn;
use models::Models;
pub use names::OwnNames;
use refusals::Refusals;
use room::Room;
use runs::Runs;
use stream_places::KeyPlaces;
use tools::Tools;
use watched_keys::WatchedKeys;

/// Default body limit of a route, in bytes.
const BODY_BYTES: usize = 1024 * 1024;

/// Shared state of the handlers. Cheap to clone.
#[derive(Clone)]
pub struct ApiState(Arc<Shared>);

/// Dependencies and limits of the API.
pub struct Api {
    pub runs: Runs,
    pub models: Models,
    pub tools: Tools,
    pub knowledge: Knowledge,
    /// Interval between keep-alive comments on an idle event stream.
    pub heartbeat: Duration,
    /// Timeout for reading a request body.
    pub body: Duration,
    /// Maximum number of open connections.
    pub connections: usize,
    /// Wrong credentials allowed per address in ten seconds before its requests queue.
    pub most_refusals: u32,
    /// Memory budget for model requests, in bytes.
    pub model_bytes: usize,
    /// Memory budget for other request bodies, in bytes.
    pub body_bytes: usize,
    /// Memory budget for responses, in bytes.
    pub answer_bytes: usize,
    /// Maximum body of an event or a Query, in bytes.
    pub event_body_bytes: usize,
    /// Allowed hosts; `None` allows any.
    pub own_names: Option<OwnNames>,
    /// Whether `/host/v1/mcp/shared` is served.
    pub shared_mcp: bool,
}

struct Shared {
    api: Api,
    refusals: Refusals,
    watched_keys: WatchedKeys,
    stream_places: KeyPlaces,
    upload_places: KeyPlaces,
    calls_that_go_on: CallsThatGoOn,
    model_room: Room,
}

impl ApiState {
    pub fn new(api: Api) -> Self {
        Self(Arc::new(Shared {
            refusals: Refusals::new(api.most_refusals),
            watched_keys: WatchedKeys::default(),
            stream_places: KeyPlaces::of(api.connections),
            upload_places: KeyPlaces::of_uploads(),
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

    fn stream_places(&self) -> &KeyPlaces {
        &self.0.stream_places
    }

    fn upload_places(&self) -> &KeyPlaces {
        &self.0.upload_places
    }
}

impl std::ops::Deref for ApiState {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.0.api
    }
}

/// Builds the router of all routes. Errors outside handlers use the common error body, too.
pub fn router(state: ApiState) -> Router {
    let (router, document) = openapi::documented().split_for_parts();
    let gate = Arc::new(Gate::before(&document, &state));
    router
        .merge(docs::page())
        .fallback(async || ApiError::no_route())
        .method_not_allowed_fallback(async || ApiError::no_method())
        .layer(from_fn_with_state(gate, gate::pass))
        .with_state(state)
}
