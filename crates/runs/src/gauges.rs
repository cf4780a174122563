//! Gauges for metrics.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::breaker::Circuit;
use protocol::id::EndpointId;
use store::{DatabaseCondition, Store};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::breakers::Breakers;
use crate::endpoint::endpoint_label;
use crate::lifecycle::Lifecycle;
use crate::live::LiveRegistry;
use telemetry::metrics::{self, BreakerState, ProcessGauges};

/// Interval of the queries, independent of the scrape interval.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Time after which a silent database is not ready.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Measures the process and its database.
pub struct Gauges {
    pub(super) store: Store,
    pub(super) live: Arc<LiveRegistry>,
    pub(super) breakers: Breakers,
    pub(super) lifecycle: Lifecycle,
}

impl Gauges {
    /// Updates the gauges and calls `settle`, until the process stops.
    pub async fn keep_gauges(&self, settle: impl Fn()) {
        let mut tick = interval(BETWEEN_LOOKS);
        // After a slow query, missed ticks must not follow in a burst.
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = HashMap::new();
        loop {
            tokio::select! {
                () = self.lifecycle.closing.cancelled() => return,
                _ = tick.tick() => {}
            }
            self.look().await;
            self.look_at_circuits(&mut failing).await;
            settle();
        }
    }

    async fn look(&self) {
        let store = &self.store;
        let is_healthy =
            timeout(DATABASE_TIMEOUT, store.condition()).await == Ok(DatabaseCondition::Healthy);
        if is_healthy && !self.lifecycle.stopping.is_cancelled() {
            metrics::set_ready();
        } else {
            metrics::set_not_ready();
        }
        // Without an answer, the last counts stay.
        if let Ok(Ok(counts)) = timeout(DATABASE_TIMEOUT, store.runs().count_active_runs()).await {
            for (status, count) in counts {
                metrics::set_runs(status.as_str(), count);
            }
        }
    }

    /// `failing`: names of the endpoints whose last reported circuit was not closed.
    async fn look_at_circuits(&self, failing: &mut HashMap<EndpointId, String>) {
        let circuits: HashMap<_, _> = self.breakers.open_circuits().into_iter().collect();
        for id in circuits.keys() {
            if !failing.contains_key(id)
                && let Ok(Ok(Some((workspace, name)))) = timeout(
                    DATABASE_TIMEOUT,
                    self.store.endpoints().find_endpoint_name(*id),
                )
                .await
            {
                failing.insert(*id, endpoint_label(&workspace, &name));
            }
        }
        // A closed circuit is reported once more, so that its gauge does not stay open.
        failing.retain(|id, name| {
            let circuit = circuits.get(id).copied().unwrap_or(Circuit::Closed);
            metrics::set_breaker(
                name,
                match circuit {
                    Circuit::Closed => BreakerState::Closed,
                    Circuit::HalfOpen => BreakerState::HalfOpen,
                    Circuit::Open => BreakerState::Open,
                },
            );
            circuit != Circuit::Closed
        });
    }

    /// Gauges that need no database.
    pub fn process_gauges(&self) -> ProcessGauges {
        ProcessGauges {
            live_runs: self.live.count(),
            queued_writes: self.store.queued_writes(),
        }
    }
}
