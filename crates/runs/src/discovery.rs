//! Runner endpoints: registration and discovery.

mod findings;
mod outcome;
mod preview;
mod probe;
mod refresh;
mod register;
mod schedule;
mod worker;

use std::sync::Arc;

use protocol::admin::{DeltaMode, EndpointMode};
use serde_json::Value;

use crate::deps::RunDeps;

pub use findings::DiscoveryFindings;
pub use probe::list_of;
pub use register::{DiscoveredEndpoint, RegisterError, Registered};

/// Registers and discovers endpoints.
pub struct Endpoints {
    pub(super) deps: Arc<RunDeps>,
}

/// Mode and delta mode of a configured endpoint.
pub fn modes(mode: &str, delta_mode: &str) -> (EndpointMode, DeltaMode) {
    let mode = if mode == "single_url" {
        EndpointMode::SingleUrl
    } else {
        EndpointMode::Standard
    };
    let delta_mode = if delta_mode == "snapshot" {
        DeltaMode::Snapshot
    } else {
        DeltaMode::Increment
    };
    (mode, delta_mode)
}

/// Manifests of a configured endpoint: a list, or an answer that holds one.
pub fn manifest_list(manifests: Value) -> Option<Vec<Value>> {
    match manifests {
        Value::Array(list) => Some(list),
        Value::Object(mut answer) => match answer.remove("runners") {
            Some(Value::Array(list)) => Some(list),
            _ => Some(vec![Value::Object(answer)]),
        },
        _ => None,
    }
}
