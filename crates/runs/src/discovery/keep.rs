//! Asking endpoints again: each in its turn, a few at a time, by one replica.

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use store::{EndpointRecord, StoreError};
use uuid::Uuid;

use super::Outcome;
use crate::Runs;
use crate::dispatch::millis;

/// Endpoints that are asked at once.
const AT_ONCE: usize = 8;
/// A turn that was taken comes to another replica after this, unless it came to an answer. Longer
/// than an endpoint may take.
const TURN: Duration = Duration::from_secs(30);
/// The longest time between two looks at who is due.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// An endpoint that brought its manifests along is never asked.
const NEVER: i64 = i64::MAX;

impl Runs {
    /// Asks endpoints whose time has come, the longest due first, until the process stops.
    pub async fn keep_discovering(&self) {
        let limits = &self.0.limits;
        let pause = (limits.discovery_ttl.min(limits.discovery_retry) / 2).min(LONGEST_PAUSE);
        let mut asking = FuturesUnordered::new();
        loop {
            let due = self.take_turns(AT_ONCE - asking.len()).await;
            asking.extend(due.into_iter().map(|endpoint| self.ask_again(endpoint)));
            tokio::select! {
                () = self.0.stopping.cancelled() => return,
                Some(()) = asking.next() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Endpoints that are due, taken from all other replicas.
    async fn take_turns(&self, most: usize) -> Vec<EndpointRecord> {
        if most == 0 {
            return Vec::new();
        }
        match self.try_take_turns(most).await {
            Ok(taken) => taken,
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "endpoints that are due could not be read"
                );
                Vec::new()
            }
        }
    }

    async fn try_take_turns(&self, most: usize) -> Result<Vec<EndpointRecord>, StoreError> {
        let now = self.0.clock.now_ms();
        let due = self
            .0
            .store
            .endpoints()
            .due_endpoints(now, most as u64)
            .await?;
        let mut taken = Vec::with_capacity(due.len());
        for endpoint in due {
            if self
                .0
                .store
                .endpoints()
                .claim_check(&endpoint, now + millis(TURN))
                .await?
            {
                taken.push(endpoint);
            }
        }
        Ok(taken)
    }

    async fn ask_again(&self, endpoint: EndpointRecord) {
        if let Err(error) = self.ask_by_itself(&endpoint).await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "endpoint {} could not be refreshed",
                endpoint.name
            );
        }
    }

    /// When an endpoint is asked again after this outcome.
    pub(super) fn next_check(&self, record: &EndpointRecord, outcome: &Outcome, now: i64) -> i64 {
        let pause = match outcome {
            Outcome::Found(_) if record.manifests.is_some() => return NEVER,
            Outcome::Found(_) => self.0.limits.discovery_ttl,
            Outcome::Failed { .. } => self.0.limits.discovery_retry,
        };
        let random = f64::from(Uuid::new_v4().as_bytes()[0]) / 255.0;
        now + millis(spread(pause, random))
    }

    /// Until when a new endpoint is left to who registers it.
    pub(super) fn first_check(&self) -> i64 {
        self.0.clock.now_ms() + millis(TURN)
    }
}

/// The pause, up to a tenth longer or shorter: what was registered together drifts apart.
fn spread(pause: Duration, random: f64) -> Duration {
    pause.mul_f64(0.9 + 0.2 * random.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_spread_by_a_tenth_to_both_sides() {
        let check = |random: f64, expected: f64| {
            let spread = spread(Duration::from_mins(5), random).as_secs_f64();
            assert!((spread - expected).abs() < 1e-6, "{random}: {spread}");
        };
        check(0.0, 270.0);
        check(0.5, 300.0);
        check(1.0, 330.0);
        check(9.0, 330.0);
    }
}
