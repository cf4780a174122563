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
use store::Store;

use crate::breakers::Breakers;
use crate::limits::RunLimits;
use clock::Clock;
use egress::Egress;
use runner_client::RunnerClient;
use secrets::seal::MasterKey;

pub use findings::DiscoveryFindings;
pub use probe::list_of;
pub use register::{DiscoveredEndpoint, RegisterError, Registered};
pub use worker::DiscoveryWorker;

/// Registers and discovers endpoints.
pub struct Endpoints {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) egress: Egress,
    pub(super) client: RunnerClient,
    pub(super) master_key: Arc<MasterKey>,
    pub(super) limits: Arc<RunLimits>,
    pub(super) breakers: Breakers,
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
