//! Endpoints that are called again and again, opened once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::id::EndpointId;
use store::EndpointAddress;

use crate::discovery::{Unopenable, open_endpoint};
use base::seal::MasterKey;
use runner_client::Endpoint;

/// More are forgotten, all at once.
const MOST: usize = 1024;

/// Those that had a run of late, each as its row was then.
#[derive(Default)]
pub(crate) struct OpenEndpoints(Mutex<HashMap<EndpointId, Opened>>);

struct Opened {
    address: Arc<EndpointAddress>,
    endpoint: Arc<Endpoint>,
}

impl OpenEndpoints {
    /// The endpoint at this address, ready to be called. An address that has changed is opened anew.
    pub(crate) fn open(
        &self,
        key: &MasterKey,
        address: &Arc<EndpointAddress>,
    ) -> Result<Arc<Endpoint>, Unopenable> {
        // A map of plain values is whole after any panic.
        let mut opened = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = opened.get(&address.id)
            && known.address == *address
        {
            return Ok(Arc::clone(&known.endpoint));
        }
        let endpoint = Arc::new(open_endpoint(key, address)?);
        if opened.len() >= MOST {
            opened.clear();
        }
        let known = Opened {
            address: Arc::clone(address),
            endpoint: Arc::clone(&endpoint),
        };
        opened.insert(address.id, known);
        Ok(endpoint)
    }
}
