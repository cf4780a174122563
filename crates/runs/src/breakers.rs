//! Circuit breakers of runner endpoints, on this replica and in memory.

use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use domain::breaker::{
    BreakerPermit, BreakerPolicy, Circuit, CircuitChange, EndpointBreaker, RequestEvidence,
};
use protocol::id::EndpointId;
use tokio::time::Instant;

use runner_client::{Answer, StartError};

/// Idle time after which a breaker is removed.
const FORGOTTEN_MS: i64 = 60 * 60 * 1000;

/// Breakers of all endpoints with recent failures. Cheap to clone.
#[derive(Clone)]
pub struct Breakers(Arc<Circuits>);

struct Circuits {
    policy: BreakerPolicy,
    /// Origin of the breakers' times, on the monotonic clock.
    origin: Instant,
    endpoints: DashMap<EndpointId, EndpointCircuit>,
}

#[derive(Default)]
struct EndpointCircuit {
    breaker: EndpointBreaker,
    /// Time of the last failure or request.
    used_at: i64,
}

impl Circuits {
    fn now_ms(&self) -> i64 {
        i64::try_from(self.origin.elapsed().as_millis()).unwrap_or(i64::MAX)
    }
}

/// State of the circuit of an endpoint. Times are epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerView {
    pub circuit: Circuit,
    /// Failures since the last answer.
    pub failures: u32,
    pub opened_at: Option<i64>,
    /// Time from which the next run may be posted.
    pub retry_at: Option<i64>,
}

/// Permit to post one run. Dropped without a note, it changes nothing.
pub(super) struct PostPermit {
    breakers: Breakers,
    endpoint: EndpointId,
    permit: BreakerPermit,
    is_noted: bool,
}

impl Breakers {
    pub(super) fn new(policy: BreakerPolicy) -> Self {
        Self(Arc::new(Circuits {
            policy,
            origin: Instant::now(),
            endpoints: DashMap::new(),
        }))
    }

    /// Acquires a permit to post to an endpoint. `Err`: the circuit is open for at least this time.
    pub(super) fn enter(&self, endpoint: EndpointId) -> Result<PostPermit, Duration> {
        let now = self.0.now_ms();
        let permit = match self.0.endpoints.get_mut(&endpoint) {
            Some(mut state) => {
                state.used_at = now;
                state.breaker.acquire(now)
            }
            // No failure is recorded, so a healthy endpoint costs no entry.
            None => BreakerPermit::Free,
        };
        if let BreakerPermit::Blocked(until) = permit {
            let wait = u64::try_from(until - now).unwrap_or(0);
            return Err(Duration::from_millis(wait));
        }
        Ok(PostPermit {
            breakers: self.clone(),
            endpoint,
            permit,
            is_noted: false,
        })
    }

    /// State of the circuit of an endpoint on this replica. `wall_now`: epoch milliseconds.
    pub fn view(&self, endpoint: EndpointId, wall_now: i64) -> BreakerView {
        let found = self.0.endpoints.get(&endpoint);
        let breaker = found.map(|state| state.breaker.clone()).unwrap_or_default();
        let now = self.0.now_ms();
        // Breakers use the monotonic clock, clients the wall clock.
        let to_wall_clock = |at: i64| wall_now + (at - now);
        BreakerView {
            circuit: breaker.circuit(now),
            failures: breaker.failures(),
            opened_at: breaker.opened_at().map(to_wall_clock),
            retry_at: breaker.retry_at().map(to_wall_clock),
        }
    }

    /// Endpoints whose circuit is not closed on this replica: a read of memory.
    pub(super) fn open_circuits(&self) -> Vec<(EndpointId, Circuit)> {
        let now = self.0.now_ms();
        let all = self.0.endpoints.iter();
        all.map(|entry| (*entry.key(), entry.breaker.circuit(now)))
            .filter(|(_, circuit)| *circuit != Circuit::Closed)
            .collect()
    }

    /// Removes idle breakers, most of them of removed endpoints.
    pub(super) fn forget_old(&self) {
        self.forget_before(self.0.now_ms() - FORGOTTEN_MS);
    }

    fn forget_before(&self, before: i64) {
        let is_waited_for =
            |state: &EndpointCircuit| state.breaker.retry_at().is_some_and(|at| at > before);
        self.0
            .endpoints
            .retain(|_, state| state.used_at > before || is_waited_for(state));
    }

    /// Lets the next run pass as a probe: the endpoint has just listed its runners.
    pub(super) fn allow_probe(&self, endpoint: EndpointId) {
        let now = self.0.now_ms();
        if let Some(mut state) = self.0.endpoints.get_mut(&endpoint) {
            state.breaker.allow_probe(now);
        }
    }

    /// True for the first failure after an answer.
    fn note(&self, endpoint: EndpointId, permit: BreakerPermit, evidence: RequestEvidence) -> bool {
        let now = self.0.now_ms();
        // Spreads the probes of replicas that saw the same outage.
        let jitter = f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0;
        // The common case makes no entry.
        if evidence != RequestEvidence::Failure && !self.0.endpoints.contains_key(&endpoint) {
            return false;
        }
        let mut state = self.0.endpoints.entry(endpoint).or_default();
        state.used_at = now;
        let breaker = &mut state.breaker;
        match breaker.note(permit, evidence, now, jitter, &self.0.policy) {
            Some(CircuitChange::Opened) => tracing::warn!(
                endpoint.id = %endpoint, failures = breaker.failures(),
                "endpoint {endpoint} fails; no runs are posted to it until its breaker closes"
            ),
            Some(CircuitChange::Closed) => {
                tracing::info!(endpoint.id = %endpoint, "endpoint {endpoint} responds again");
            }
            None => {}
        }
        let is_first = evidence == RequestEvidence::Failure && breaker.failures() == 1;
        // `remove_if` locks the same shard.
        drop(state);
        self.0
            .endpoints
            .remove_if(&endpoint, |_, state| state.breaker.is_idle());
        is_first
    }
}

impl PostPermit {
    /// Notes the outcome of the POST. True for the first failure after an answer.
    pub(super) fn note(mut self, posted: &Result<Answer, StartError>) -> bool {
        // Set before the note, so that `drop` does not note twice.
        self.is_noted = true;
        self.breakers
            .note(self.endpoint, self.permit, evidence_of(posted))
    }
}

impl Drop for PostPermit {
    fn drop(&mut self) {
        if !self.is_noted {
            self.breakers
                // A cancelled POST must return its probe, or the circuit would stay half open.
                .note(self.endpoint, self.permit, RequestEvidence::Nothing);
        }
    }
}

/// Every answer counts as a sign of life, also a refusal or a request to wait. The results do not count.
fn evidence_of(posted: &Result<Answer, StartError>) -> RequestEvidence {
    match posted {
        // A server error with `Retry-After` is a request to wait, so it counts as an answer.
        Err(StartError::Refused {
            status,
            retry_after: None,
            ..
        }) if status.is_server_error() => RequestEvidence::Failure,
        Ok(_) | Err(StartError::Refused { .. } | StartError::BadContentType { .. }) => {
            RequestEvidence::Answered
        }
        Err(StartError::Unreachable(_) | StartError::Broken(_) | StartError::Silent) => {
            RequestEvidence::Failure
        }
        Err(StartError::Unprepared(_) | StartError::CircuitOpen { .. }) => RequestEvidence::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn removes_idle_breakers_but_not_open_ones() {
        let policy = BreakerPolicy {
            failures: 2,
            wait_ms: 10_000,
            max_wait_ms: 10_000,
        };
        let breakers = Breakers::new(policy);
        let [once, often] = [1, 2].map(|n| EndpointId(Uuid::from_u128(n)));
        for endpoint in [once, often, often] {
            breakers
                .enter(endpoint)
                .unwrap()
                .note(&Err(StartError::Silent));
        }
        let wait = breakers.enter(often).err().unwrap();
        assert!(wait <= Duration::from_secs(10), "{wait:?}");
        let view = breakers.view(often, 1_000_000);
        assert_eq!(view.circuit, Circuit::Open);
        let ago = 1_000_000 - view.opened_at.unwrap();
        assert!((0..10_000).contains(&ago), "{ago}");
        let now = breakers.0.now_ms();
        breakers.forget_old();
        assert_eq!(breakers.0.endpoints.len(), 2);
        breakers.forget_before(now);
        assert!(breakers.0.endpoints.contains_key(&often), "it is open");
        assert!(!breakers.0.endpoints.contains_key(&once));
        breakers.forget_before(now + 10_001);
        assert_eq!(breakers.0.endpoints.len(), 0);
    }
}
