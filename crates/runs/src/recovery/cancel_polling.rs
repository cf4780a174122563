//! Polling for cancels that other replicas have stored.

use std::sync::Arc;
use std::time::Duration;

use store::{Backend, Store, StoreError};

use crate::limits::RunLimits;
use crate::live::LiveRegistry;
use crate::notifier::Notifier;

/// Minimum pause between two queries, because notifications may come in bursts.
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// Finds cancel requests of runs that live here.
pub(crate) struct CancelPolling {
    pub(crate) store: Store,
    pub(crate) limits: Arc<RunLimits>,
    /// Name of this process in leases.
    pub(crate) owner: Arc<str>,
    pub(crate) live: Arc<LiveRegistry>,
    pub(crate) notifier: Arc<Notifier>,
}

impl CancelPolling {
    /// Polls for stored cancel requests, on notification and at an interval.
    pub(super) async fn keep_polling(&self) {
        let mut is_failing = false;
        while self.store.backend() == Backend::Postgres {
            tokio::select! {
                () = self.notifier.cancels.notified() => {}
                () = tokio::time::sleep(self.limits.poll) => {}
            }
            let polled = self.poll().await;
            if let Err(error) = &polled
                && !is_failing
            {
                let error = error as &dyn std::error::Error;
                tracing::error!(error, "cannot read the cancels of other replicas");
            }
            is_failing = polled.is_err();
            tokio::time::sleep(BETWEEN_LOOKS).await;
        }
    }

    async fn poll(&self) -> Result<(), StoreError> {
        for (id, at) in self.store.leases().cancel_requests_of(&self.owner).await? {
            if let Some(live) = self.live.get(id) {
                live.request_cancel(at);
            }
        }
        Ok(())
    }
}
