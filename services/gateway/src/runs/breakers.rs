//! The circuits of runner endpoints, as this replica sees them: in memory, gone with the process.

use std::sync::Arc;

use dashmap::DashMap;
use domain::breaker::{Breaker, BreakerPolicy, Change, Circuit, Passage, Sign};
use protocol::id::EndpointId;

use crate::clock::Clock;
use crate::outbound::runner::{StartError, Started};
use crate::runs::Runs;

/// A circuit that stood open for so long without anybody asking is forgotten.
const FORGOTTEN_MS: i64 = 60 * 60 * 1000;

/// The circuits of all endpoints that have failed of late. Cheap to clone.
#[derive(Clone)]
pub(super) struct Breakers(Arc<Inner>);

struct Inner {
    policy: BreakerPolicy,
    clock: Clock,
    endpoints: DashMap<EndpointId, Breaker>,
}

/// Leave to post one run. Dropped without a word it has shown nothing.
pub(super) struct Permit {
    breakers: Breakers,
    endpoint: EndpointId,
    passage: Passage,
    told: bool,
}

impl Breakers {
    pub(super) fn new(policy: BreakerPolicy, clock: Clock) -> Self {
        Self(Arc::new(Inner {
            policy,
            clock,
            endpoints: DashMap::new(),
        }))
    }

    /// Leave to post to an endpoint; `None`: its circuit is open.
    pub(super) fn enter(&self, endpoint: EndpointId) -> Option<Permit> {
        let now = self.0.clock.now_ms();
        let passage = match self.0.endpoints.get_mut(&endpoint) {
            Some(mut breaker) => breaker.ask(now),
            None => Passage::Free,
        };
        (!matches!(passage, Passage::Blocked(_))).then(|| Permit {
            breakers: self.clone(),
            endpoint,
            passage,
            told: false,
        })
    }

    /// How the circuit of an endpoint stands.
    pub(super) fn breaker(&self, endpoint: EndpointId) -> Breaker {
        let found = self.0.endpoints.get(&endpoint);
        found.map(|breaker| breaker.clone()).unwrap_or_default()
    }

    /// Forgets what nobody has asked about for long: endpoints that were removed, most likely.
    pub(super) fn forget_old(&self) {
        let before = self.0.clock.now_ms() - FORGOTTEN_MS;
        self.0
            .endpoints
            .retain(|_, breaker| breaker.retry_at().is_none_or(|at| at > before));
    }

    fn note(&self, endpoint: EndpointId, passage: Passage, sign: Sign) {
        let now = self.0.clock.now_ms();
        let jitter = f64::from(uuid::Uuid::new_v4().as_bytes()[0]) / 255.0;
        // The common case makes no entry.
        if sign != Sign::Failure && !self.0.endpoints.contains_key(&endpoint) {
            return;
        }
        let mut breaker = self.0.endpoints.entry(endpoint).or_default();
        match breaker.note(passage, sign, now, jitter, &self.0.policy) {
            Some(Change::Opened) => tracing::warn!(
                endpoint.id = %endpoint, failures = breaker.failures(),
                "endpoint {endpoint} fails: no run is posted to it for a while"
            ),
            Some(Change::Closed) => {
                tracing::info!(endpoint.id = %endpoint, "endpoint {endpoint} answers again");
            }
            None => {}
        }
        drop(breaker);
        self.0
            .endpoints
            .remove_if(&endpoint, |_, breaker| breaker.is_calm());
    }
}

impl Permit {
    /// What came of the POST.
    pub(super) fn note(mut self, posted: &Result<Started, StartError>) {
        self.told = true;
        self.breakers
            .note(self.endpoint, self.passage, sign_of(posted));
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.told {
            self.breakers
                .note(self.endpoint, self.passage, Sign::Nothing);
        }
    }
}

/// An answer is a sign of life, also one that refuses or asks to wait; what the run then says is the
/// runner's business.
fn sign_of(posted: &Result<Started, StartError>) -> Sign {
    match posted {
        Err(StartError::Refused {
            status,
            retry_after: None,
        }) if status.is_server_error() => Sign::Failure,
        Ok(_) | Err(StartError::Refused { .. } | StartError::BadContentType(_)) => Sign::Life,
        Err(StartError::Unreachable(_) | StartError::Broken(_) | StartError::Silent) => {
            Sign::Failure
        }
        Err(StartError::Unprepared(_) | StartError::CircuitOpen) => Sign::Nothing,
    }
}

impl Runs {
    /// How the circuit of an endpoint stands on this replica.
    pub fn breaker(&self, endpoint: EndpointId) -> Breaker {
        self.0.breakers.breaker(endpoint)
    }

    /// The endpoints whose circuit is not closed on this replica: a read of memory.
    pub fn open_circuits(&self) -> Vec<(EndpointId, Circuit)> {
        let now = self.0.clock.now_ms();
        let all = self.0.breakers.0.endpoints.iter();
        all.map(|entry| (*entry.key(), entry.circuit(now)))
            .filter(|(_, circuit)| *circuit != Circuit::Closed)
            .collect()
    }
}
