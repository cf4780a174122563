//! Gauges for metrics.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::breaker::Circuit;
use protocol::id::EndpointId;
use store::DatabaseCondition;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::deps::RunDeps;
use crate::endpoint::endpoint_label;
use telemetry::metrics::{self, BreakerState, ProcessGauges};

/// Interval of the queries, independent of the scrape interval.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Maximum pending deliveries, and late occurrences, that are counted.
const MAX_PENDING: u64 = 10_000;
/// Time after which a silent database is not ready.
const DATABASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Measures the process and its database.
pub struct Gauges {
    pub(super) deps: Arc<RunDeps>,
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
                () = self.deps.lifecycle.closing.cancelled() => return,
                _ = tick.tick() => {}
            }
            self.look().await;
            self.look_at_circuits(&mut failing).await;
            settle();
        }
    }

    async fn look(&self) {
        let store = &self.deps.store;
        let is_healthy =
            timeout(DATABASE_TIMEOUT, store.condition()).await == Ok(DatabaseCondition::Healthy);
        if is_healthy && !self.deps.lifecycle.stopping.is_cancelled() {
            metrics::set_ready();
        } else {
            metrics::set_not_ready();
        }
        let pending = store.notifications().count_pending_deliveries(MAX_PENDING);
        if let Ok(Ok(pending)) = timeout(DATABASE_TIMEOUT, pending).await {
            metrics::set_pending_deliveries(u32::try_from(pending).unwrap_or(u32::MAX));
        }
        let late = store.agents().count_late_occurrences(MAX_PENDING);
        if let Ok(Ok(late)) = timeout(DATABASE_TIMEOUT, late).await {
            metrics::set_late_occurrences(u32::try_from(late).unwrap_or(u32::MAX));
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
        let circuits: HashMap<_, _> = self.deps.breakers.open_circuits().into_iter().collect();
        for id in circuits.keys() {
            if !failing.contains_key(id)
                && let Ok(Ok(Some((workspace, name)))) = timeout(
                    DATABASE_TIMEOUT,
                    self.deps.store.endpoints().find_endpoint_name(*id),
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
            live_runs: self.deps.live.count(),
            queued_writes: self.deps.store.queued_writes(),
        }
    }
}
