//! Calls of this process for which something is reserved: it stays reserved while they go on, and no longer when the
//! process dies.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use store::StoreError;
use uuid::Uuid;

use crate::Runs;

#[derive(Default)]
pub(super) struct ReservedCalls(Mutex<HashSet<Uuid>>);

impl ReservedCalls {
    // Whole after any panic: it changes by one entry at a time.
    fn calls(&self) -> MutexGuard<'_, HashSet<Uuid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is reserved for a call is held until this is dropped.
pub struct Reservation {
    runs: Runs,
    call_id: Uuid,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.runs.0.reserved.calls().remove(&self.call_id);
    }
}

impl Runs {
    /// Holds what is reserved for a call of this process, by renewing its lease.
    pub fn hold_reservation(&self, call_id: Uuid) -> Reservation {
        self.0.reserved.calls().insert(call_id);
        Reservation {
            runs: self.clone(),
            call_id,
        }
    }

    pub(super) async fn renew_reservations(&self) -> Result<(), StoreError> {
        let calls: Vec<_> = self.0.reserved.calls().iter().copied().collect();
        if calls.is_empty() {
            return Ok(());
        }
        let lease = self.0.limits.lease;
        self.0.store.usage().extend_reservations(calls, lease).await
    }
}
