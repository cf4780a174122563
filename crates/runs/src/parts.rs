//! Parts that runs are built from.

use std::sync::Arc;

use arc_swap::ArcSwap;
use domain::authorization::ResourceCatalog;
use domain::budget::Budget;
use egress::Egress;
use store::{OwnerLock, Store};

use crate::bus::Bus;
use crate::limits::RunLimits;
use blob_store::ArtifactStore;
use clock::Clock;
use keys::keyring::Keyring;
use runner_client::RunnerClient;
use secrets::seal::MasterKey;
use telemetry::spans::Spans;

/// Parts that runs are built from.
pub struct RunParts {
    pub store: Store,
    pub bus: Box<dyn Bus>,
    pub clock: Clock,
    pub egress: Egress,
    pub client: RunnerClient,
    pub keys: Arc<Keyring>,
    pub master_key: Arc<MasterKey>,
    /// The current resources. They change with the tool servers.
    pub catalog: Arc<ArcSwap<ResourceCatalog>>,
    pub spans: Spans,
    pub budgets: Arc<[Budget]>,
    /// Contents of artifacts; their rows are in the database.
    pub artifacts: ArtifactStore,
    pub limits: RunLimits,
    /// Name of this process in leases.
    pub owner: String,
    /// Lock of this owner. `None`: others find its end by its leases only.
    pub owner_lock: Option<OwnerLock>,
}
