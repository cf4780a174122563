//! Ids of the tool calls with a ticket in progress in this process.

use std::sync::Arc;

use dashmap::DashSet;
use uuid::Uuid;

/// Tool calls with a ticket in progress in this process. Cheap to clone.
#[derive(Clone, Default)]
pub struct CallsInProgress(Arc<DashSet<Uuid>>);

impl CallsInProgress {
    pub fn insert(&self, call: Uuid) {
        self.0.insert(call);
    }

    pub fn remove(&self, call: Uuid) {
        self.0.remove(&call);
    }

    pub fn contains(&self, call: Uuid) -> bool {
        self.0.contains(&call)
    }
}
