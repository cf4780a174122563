//! Circuit breaker of a runner endpoint.

/// Thresholds and timeouts of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Consecutive failures that open the circuit; 0 disables the breaker.
    pub failures: u32,
    /// Base delay from the opening to the first probe, in milliseconds, before jitter. Doubles with each failed
    /// probe.
    pub wait_ms: i64,
    /// Maximum delay, in milliseconds.
    pub max_wait_ms: i64,
}

/// State of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circuit {
    /// Requests pass.
    Closed,
    /// No request passes.
    Open,
    /// The delay is over. One probe may pass or is in flight; its outcome decides.
    HalfOpen,
}

impl Circuit {
    /// Returns the name used in the API and in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerPermit {
    Free,
    /// The request may pass as a probe; its outcome decides.
    Probe,
    /// Blocked at least until this time.
    Blocked(i64),
}

/// Outcome of a request for the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestEvidence {
    /// The endpoint answered, with any status.
    Answered,
    /// The endpoint is unreachable, fails, or times out.
    Failure,
    /// The request ended without evidence.
    Nothing,
}

/// Transition of the circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CircuitChange {
    Opened,
    Closed,
}

/// Circuit breaker of one endpoint. Times are milliseconds of a monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointBreaker {
    failures: u32,
    opened: Option<Opened>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Opened {
    at: i64,
    retry_at: i64,
    /// Number of failed probes.
    probes: u32,
    /// True while a probe is in flight.
    probing: bool,
}

impl EndpointBreaker {
    /// Requests permission to send. After [`BreakerPermit::Probe`], the caller must report the outcome to
    /// [`EndpointBreaker::note`].
    pub fn acquire(&mut self, now: i64) -> BreakerPermit {
        match &mut self.opened {
            None => BreakerPermit::Free,
            // One probe at a time: others stay blocked until its outcome is reported.
            Some(opened) if now < opened.retry_at || opened.probing => {
                // A probe in flight may outlive its own `retry_at`; never report a time in the past.
                BreakerPermit::Blocked(opened.retry_at.max(now))
            }
            Some(opened) => {
                opened.probing = true;
                BreakerPermit::Probe
            }
        }
    }

    /// Records the outcome of a request that passed. `jitter`: 0 to 1.
    pub fn note(
        &mut self,
        permit: BreakerPermit,
        evidence: RequestEvidence,
        now: i64,
        jitter: f64,
        policy: &BreakerPolicy,
    ) -> Option<CircuitChange> {
        let is_probe = permit == BreakerPermit::Probe;
        match (evidence, &mut self.opened) {
            // Any answer closes the circuit, also one to a request from before the opening.
            (RequestEvidence::Answered, opened) => {
                let closed = opened.take().map(|_| CircuitChange::Closed);
                self.failures = 0;
                closed
            }
            (RequestEvidence::Failure, None) => {
                self.failures = self.failures.saturating_add(1);
                if policy.failures == 0 || self.failures < policy.failures {
                    return None;
                }
                self.opened = Some(Opened {
                    at: now,
                    retry_at: now + wait(0, jitter, policy),
                    probes: 0,
                    probing: false,
                });
                Some(CircuitChange::Opened)
            }
            (RequestEvidence::Failure, Some(opened)) if is_probe => {
                self.failures = self.failures.saturating_add(1);
                opened.probes = opened.probes.saturating_add(1);
                opened.retry_at = now + wait(opened.probes, jitter, policy);
                opened.probing = false;
                None
            }
            // Without evidence the next request probes at once; keeping `probing` would block the endpoint forever.
            (RequestEvidence::Nothing, Some(opened)) if is_probe => {
                opened.probing = false;
                None
            }
            // The request was sent before the circuit opened and adds no evidence.
            (RequestEvidence::Failure, Some(_)) | (RequestEvidence::Nothing, _) => None,
        }
    }

    /// Ends the wait for the next probe: the endpoint has answered another request.
    pub fn allow_probe(&mut self, now: i64) {
        if let Some(opened) = &mut self.opened {
            // `min` keeps an earlier probe time.
            opened.retry_at = opened.retry_at.min(now);
        }
    }

    /// Returns the state of the circuit.
    pub fn circuit(&self, now: i64) -> Circuit {
        match self.opened {
            None => Circuit::Closed,
            Some(opened) if opened.probing || now >= opened.retry_at => Circuit::HalfOpen,
            Some(_) => Circuit::Open,
        }
    }

    /// Returns the consecutive failures, without those of non-probe requests while open.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns the time of the opening.
    pub fn opened_at(&self) -> Option<i64> {
        self.opened.map(|opened| opened.at)
    }

    /// Returns the time of the next probe.
    pub fn retry_at(&self) -> Option<i64> {
        self.opened.map(|opened| opened.retry_at)
    }

    /// Returns true if the breaker has no state to keep.
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns 50–100 % of the delay after this many failed probes.
/// same time.
fn wait(probes: u32, jitter: f64, policy: &BreakerPolicy) -> i64 {
    // The cap of the shift prevents an overflow; `max_wait_ms` is reached long before.
    let grown = policy.wait_ms.saturating_mul(1 << probes.min(20));
    let delay = grown.min(policy.max_wait_ms).max(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the waits of a configuration are far below 2^52 milliseconds"
    )]
    // Jitter keeps replicas from probing at the same time.
    let part = (delay as f64 * (0.5 + jitter.clamp(0.0, 1.0) / 2.0)).ceil() as i64;
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BreakerPolicy = BreakerPolicy {
        failures: 3,
        wait_ms: 1_000,
        max_wait_ms: 3_000,
    };

    /// Fails `times` requests at `now`.
    fn fail(breaker: &mut EndpointBreaker, times: u32, now: i64) -> Option<CircuitChange> {
        let mut change = None;
        for _ in 0..times {
            let permit = breaker.acquire(now);
            change = breaker.note(permit, RequestEvidence::Failure, now, 1.0, &POLICY);
        }
        change
    }

    fn opened() -> EndpointBreaker {
        let mut breaker = EndpointBreaker::default();
        assert_eq!(fail(&mut breaker, 3, 0), Some(CircuitChange::Opened));
        breaker
    }

    #[test]
    fn opens_after_consecutive_failures_and_resets_on_answer() {
        let mut breaker = EndpointBreaker::default();
        assert_eq!(fail(&mut breaker, 2, 0), None);
        assert_eq!(
            breaker.note(
                BreakerPermit::Free,
                RequestEvidence::Answered,
                0,
                1.0,
                &POLICY
            ),
            None
        );
        assert!(breaker.is_idle());
        assert_eq!(fail(&mut breaker, 2, 0), None);
        assert_eq!(
            breaker.note(
                BreakerPermit::Free,
                RequestEvidence::Nothing,
                0,
                1.0,
                &POLICY
            ),
            None
        );
        assert_eq!(fail(&mut breaker, 1, 7), Some(CircuitChange::Opened));
        assert_eq!(breaker.circuit(7), Circuit::Open);
        assert_eq!((breaker.failures(), breaker.opened_at()), (3, Some(7)));
        assert_eq!(breaker.acquire(8), BreakerPermit::Blocked(1_007));
    }

    #[test]
    fn allowed_probe_does_not_wait() {
        let mut breaker = opened();
        breaker.allow_probe(10);
        assert_eq!(breaker.circuit(10), Circuit::HalfOpen);
        assert_eq!(breaker.acquire(10), BreakerPermit::Probe);
        breaker.allow_probe(11);
        assert_eq!(
            breaker.acquire(11),
            BreakerPermit::Blocked(11),
            "one at a time"
        );
        breaker.note(
            BreakerPermit::Probe,
            RequestEvidence::Failure,
            12,
            1.0,
            &POLICY,
        );
        assert_eq!(breaker.retry_at(), Some(2_012));
        let mut closed = EndpointBreaker::default();
        closed.allow_probe(10);
        assert!(closed.is_idle());
    }

    #[test]
    fn half_open_admits_one_probe_that_closes_circuit() {
        let mut breaker = opened();
        assert_eq!(breaker.acquire(999), BreakerPermit::Blocked(1_000));
        assert_eq!(breaker.circuit(1_000), Circuit::HalfOpen);
        assert_eq!(breaker.acquire(1_000), BreakerPermit::Probe);
        assert_eq!(breaker.acquire(1_000), BreakerPermit::Blocked(1_000));
        let change = breaker.note(
            BreakerPermit::Probe,
            RequestEvidence::Answered,
            1_001,
            1.0,
            &POLICY,
        );
        assert_eq!(change, Some(CircuitChange::Closed));
        assert!(breaker.is_idle());
        assert_eq!(breaker.acquire(1_001), BreakerPermit::Free);
    }

    #[test]
    fn failed_probes_double_delay_up_to_maximum() {
        let mut breaker = opened();
        let mut now = 1_000;
        for wait in [2_000, 3_000, 3_000] {
            assert_eq!(breaker.acquire(now), BreakerPermit::Probe);
            breaker.note(
                BreakerPermit::Probe,
                RequestEvidence::Failure,
                now,
                1.0,
                &POLICY,
            );
            assert_eq!(breaker.retry_at(), Some(now + wait));
            now += wait;
        }
        assert_eq!(breaker.failures(), 6);
    }

    #[test]
    fn inconclusive_probe_admits_another_probe() {
        let mut breaker = opened();
        assert_eq!(breaker.acquire(1_000), BreakerPermit::Probe);
        breaker.note(
            BreakerPermit::Probe,
            RequestEvidence::Nothing,
            1_000,
            1.0,
            &POLICY,
        );
        assert_eq!(breaker.acquire(1_000), BreakerPermit::Probe);
    }

    #[test]
    fn in_flight_requests_close_but_never_extend_circuit() {
        let mut breaker = opened();
        breaker.note(
            BreakerPermit::Free,
            RequestEvidence::Failure,
            900,
            1.0,
            &POLICY,
        );
        assert_eq!(breaker.retry_at(), Some(1_000));
        assert_eq!(breaker.acquire(1_000), BreakerPermit::Probe);
        breaker.note(
            BreakerPermit::Free,
            RequestEvidence::Failure,
            1_000,
            1.0,
            &POLICY,
        );
        breaker.note(
            BreakerPermit::Free,
            RequestEvidence::Nothing,
            1_000,
            1.0,
            &POLICY,
        );
        assert_eq!(
            breaker.acquire(1_000),
            BreakerPermit::Blocked(1_000),
            "the probe is on its way"
        );
        let change = breaker.note(
            BreakerPermit::Free,
            RequestEvidence::Answered,
            1_000,
            1.0,
            &POLICY,
        );
        assert_eq!(change, Some(CircuitChange::Closed));
    }

    #[test]
    fn jitter_keeps_delay_between_half_and_full() {
        assert_eq!(wait(0, 0.0, &POLICY), 500);
        assert_eq!(wait(0, 1.0, &POLICY), 1_000);
        assert_eq!(wait(u32::MAX, 7.0, &POLICY), 3_000);
        let none = BreakerPolicy {
            wait_ms: 0,
            ..POLICY
        };
        assert_eq!(wait(0, 0.0, &none), 1);
    }

    #[test]
    fn zero_threshold_never_opens() {
        let never = BreakerPolicy {
            failures: 0,
            ..POLICY
        };
        let mut breaker = EndpointBreaker::default();
        for _ in 0..100 {
            assert_eq!(
                breaker.note(
                    BreakerPermit::Free,
                    RequestEvidence::Failure,
                    0,
                    1.0,
                    &never
                ),
                None
            );
        }
        assert_eq!(breaker.acquire(0), BreakerPermit::Free);
    }
}
