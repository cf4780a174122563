//! Cache of opened endpoints.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::id::EndpointId;
use store::EndpointAddress;

use crate::endpoint::{Unopenable, open_endpoint};
use runner_client::Endpoint;
use secrets::seal::MasterKey;

/// Maximum number of endpoints. A full cache is emptied.
const MAX_ENDPOINTS: usize = 1024;

/// Opened endpoints by id, each with the address that it was opened from.
pub(crate) struct EndpointCache {
    key: Arc<MasterKey>,
    opened: Mutex<HashMap<EndpointId, CachedEndpoint>>,
}

struct CachedEndpoint {
    address: Arc<EndpointAddress>,
    endpoint: Arc<Endpoint>,
}

impl EndpointCache {
    pub(crate) fn new(key: Arc<MasterKey>) -> Self {
        Self {
            key,
            opened: Mutex::default(),
        }
    }

    /// Returns the endpoint at this address. A changed address is opened again.
    pub(crate) fn open(&self, address: &Arc<EndpointAddress>) -> Result<Arc<Endpoint>, Unopenable> {
        // A map of plain values stays consistent after a panic.
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = opened.get(&address.id)
            // Compared by value: rotated secrets or headers make a new entry.
            && cached.address == *address
        {
            return Ok(Arc::clone(&cached.endpoint));
        }
        let endpoint = Arc::new(open_endpoint(&self.key, address)?);
        if opened.len() >= MAX_ENDPOINTS {
            opened.clear();
        }
        let cached = CachedEndpoint {
            address: Arc::clone(address),
            endpoint: Arc::clone(&endpoint),
        };
        opened.insert(address.id, cached);
        Ok(endpoint)
    }
}
