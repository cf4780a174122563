//! Shared state of the handlers: dependencies, limits, caches and memory budgets.

use std::sync::Arc;
use std::time::Duration;

use crate::calls_in_progress::CallsThatGoOn;
use crate::host::models::room::room_for_models;
use crate::names::OwnNames;
use crate::refusals::Refusals;
use crate::room::Room;
use crate::stream_places::KeyPlaces;
use crate::watched_keys::WatchedKeys;
use ::knowledge::Knowledge;
use models::Models;
use runs::Runs;
use tools::Tools;

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

    pub(super) fn refusals(&self) -> &Refusals {
        &self.0.refusals
    }

    pub(super) fn calls_that_go_on(&self) -> &CallsThatGoOn {
        &self.0.calls_that_go_on
    }

    pub(super) fn model_room(&self) -> &Room {
        &self.0.model_room
    }

    pub(super) fn watched_keys(&self) -> &WatchedKeys {
        &self.0.watched_keys
    }

    pub(super) fn stream_places(&self) -> &KeyPlaces {
        &self.0.stream_places
    }

    pub(super) fn upload_places(&self) -> &KeyPlaces {
        &self.0.upload_places
    }
}

impl std::ops::Deref for ApiState {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.0.api
    }
}
