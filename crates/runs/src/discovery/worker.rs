//! Discovery worker: discovers endpoints again when they are due. One replica claims each of them.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use store::{EndpointRecord, StoreError};

use super::Endpoints;
use super::schedule::{CLAIM_TIME, millis};

/// Concurrent discoveries of this process.
const AT_ONCE: usize = 8;
/// Maximum pause between two queries for due endpoints.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl Endpoints {
    /// Discovers due endpoints, the longest due first, until the process stops.
    pub async fn keep_discovering(&self) {
        let limits = &self.deps.limits;
        let pause = (limits.discovery_ttl.min(limits.discovery_retry) / 2).min(LONGEST_PAUSE);
        let mut asking = FuturesUnordered::new();
        loop {
            let due = self.claim_due(AT_ONCE - asking.len()).await;
            asking.extend(due.into_iter().map(|endpoint| self.ask_again(endpoint)));
            tokio::select! {
                () = self.deps.lifecycle.stopping.cancelled() => return,
                // A finished discovery frees a slot for the next due endpoint.
                Some(()) = asking.next() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Claims due endpoints against all other replicas.
    async fn claim_due(&self, slots: usize) -> Vec<EndpointRecord> {
        if slots == 0 {
            return Vec::new();
        }
        match self.try_claim_due(slots).await {
            Ok(taken) => taken,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "cannot read the endpoints due for discovery"
                );
                Vec::new()
            }
        }
    }

    async fn try_claim_due(&self, slots: usize) -> Result<Vec<EndpointRecord>, StoreError> {
        let now = self.deps.clock.now_ms();
        let due = self
            .deps
            .store
            .endpoints()
            .due_endpoints(now, slots as u64)
            .await?;
        let mut taken = Vec::with_capacity(due.len());
        for endpoint in due {
            if self
                .deps
                .store
                .endpoints()
                // Replicas read the same due rows; the claim lets one of them through.
                .claim_check(&endpoint, now + millis(CLAIM_TIME))
                .await?
            {
                taken.push(endpoint);
            }
        }
        Ok(taken)
    }

    async fn ask_again(&self, endpoint: EndpointRecord) {
        if let Err(error) = self.refresh_when_due(&endpoint).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "cannot refresh endpoint {}",
                endpoint.name
            );
        }
    }
}
