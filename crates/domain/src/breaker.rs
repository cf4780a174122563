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
    pub longest_wait_ms: i64,
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
pub enum Passage {
    Free,
    /// The request may pass as a probe; its outcome decides.
    Probe,
    /// Blocked at least until this time.
    Blocked(i64),
}

/// Outcome of a request for the breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The endpoint answered, with any status.
    Life,
    /// The endpoint is unreachable, fails, or times out.
    Failure,
    /// The request ended without evidence.
    Nothing,
}

/// Transition of the circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Opened,
    Closed,
}

/// Circuit breaker of one endpoint. Times are milliseconds of a monotonic clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Breaker {
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

impl Breaker {
    /// Requests permission to send. After [`Passage::Probe`], the caller must report the outcome to
    /// [`Breaker::note`].
    pub fn ask(&mut self, now: i64) -> Passage {
        match &mut self.opened {
            None => Passage::Free,
            Some(opened) if now < opened.retry_at || opened.probing => {
                Passage::Blocked(opened.retry_at.max(now))
            }
            Some(opened) => {
                opened.probing = true;
                Passage::Probe
            }
        }
    }

    /// Records the outcome of a request that passed. `jitter`: 0 to 1.
    pub fn note(
        &mut self,
        passage: Passage,
        sign: Sign,
        now: i64,
        jitter: f64,
        policy: &BreakerPolicy,
    ) -> Option<Change> {
        let is_probe = passage == Passage::Probe;
        match (sign, &mut self.opened) {
            (Sign::Life, opened) => {
                let closed = opened.take().map(|_| Change::Closed);
                self.failures = 0;
                closed
            }
            (Sign::Failure, None) => {
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
                Some(Change::Opened)
            }
            (Sign::Failure, Some(opened)) if is_probe => {
                self.failures = self.failures.saturating_add(1);
                opened.probes = opened.probes.saturating_add(1);
                opened.retry_at = now + wait(opened.probes, jitter, policy);
                opened.probing = false;
                None
            }
            (Sign::Nothing, Some(opened)) if is_probe => {
                opened.probing = false;
                None
            }
            // The request was sent before the circuit opened and adds no evidence.
            (Sign::Failure, Some(_)) | (Sign::Nothing, _) => None,
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
    pub fn is_calm(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns 50–100 % of the delay after this many failed probes. The jitter keeps replicas from probing at the
/// same time.
fn wait(probes: u32, jitter: f64, policy: &BreakerPolicy) -> i64 {
    let grown = policy.wait_ms.saturating_mul(1 << probes.min(20));
    let whole = grown.min(policy.longest_wait_ms).max(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "the waits of a configuration are far below 2^52 milliseconds"
    )]
    let part = (whole as f64 * (0.5 + jitter.clamp(0.0, 1.0) / 2.0)).ceil() as i64;
    part
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BreakerPolicy = BreakerPolicy {
        failures: 3,
        wait_ms: 1_000,
        longest_wait_ms: 3_000,
    };

    /// Fails `times` requests at `now`.
    fn fail(breaker: &mut Breaker, times: u32, now: i64) -> Option<Change> {
        let mut change = None;
        for _ in 0..times {
            let passage = breaker.ask(now);
            change = breaker.note(passage, Sign::Failure, now, 1.0, &POLICY);
        }
        change
    }

    fn opened() -> Breaker {
        let mut breaker = Breaker::default();
        assert_eq!(fail(&mut breaker, 3, 0), Some(Change::Opened));
        breaker
    }

    #[test]
    fn failures_in_a_row_open_the_circuit_and_a_sign_of_life_begins_anew() {
        let mut breaker = Breaker::default();
        assert_eq!(fail(&mut breaker, 2, 0), None);
        assert_eq!(
            breaker.note(Passage::Free, Sign::Life, 0, 1.0, &POLICY),
            None
        );
        assert!(breaker.is_calm());
        assert_eq!(fail(&mut breaker, 2, 0), None);
        assert_eq!(
            breaker.note(Passage::Free, Sign::Nothing, 0, 1.0, &POLICY),
            None
        );
        assert_eq!(fail(&mut breaker, 1, 7), Some(Change::Opened));
        assert_eq!(breaker.circuit(7), Circuit::Open);
        assert_eq!((breaker.failures(), breaker.opened_at()), (3, Some(7)));
        assert_eq!(breaker.ask(8), Passage::Blocked(1_007));
    }

    #[test]
    fn after_the_wait_one_request_probes_and_its_life_closes_the_circuit() {
        let mut breaker = opened();
        assert_eq!(breaker.ask(999), Passage::Blocked(1_000));
        assert_eq!(breaker.circuit(1_000), Circuit::HalfOpen);
        assert_eq!(breaker.ask(1_000), Passage::Probe);
        assert_eq!(breaker.ask(1_000), Passage::Blocked(1_000));
        let change = breaker.note(Passage::Probe, Sign::Life, 1_001, 1.0, &POLICY);
        assert_eq!(change, Some(Change::Closed));
        assert!(breaker.is_calm());
        assert_eq!(breaker.ask(1_001), Passage::Free);
    }

    #[test]
    fn each_failed_probe_doubles_the_wait_up_to_the_longest() {
        let mut breaker = opened();
        let mut now = 1_000;
        for wait in [2_000, 3_000, 3_000] {
            assert_eq!(breaker.ask(now), Passage::Probe);
            breaker.note(Passage::Probe, Sign::Failure, now, 1.0, &POLICY);
            assert_eq!(breaker.retry_at(), Some(now + wait));
            now += wait;
        }
        assert_eq!(breaker.failures(), 6);
    }

    #[test]
    fn a_probe_that_shows_nothing_lets_another_try() {
        let mut breaker = opened();
        assert_eq!(breaker.ask(1_000), Passage::Probe);
        breaker.note(Passage::Probe, Sign::Nothing, 1_000, 1.0, &POLICY);
        assert_eq!(breaker.ask(1_000), Passage::Probe);
    }

    #[test]
    fn what_was_on_its_way_before_may_close_the_circuit_and_not_prolong_it() {
        let mut breaker = opened();
        breaker.note(Passage::Free, Sign::Failure, 900, 1.0, &POLICY);
        assert_eq!(breaker.retry_at(), Some(1_000));
        assert_eq!(breaker.ask(1_000), Passage::Probe);
        breaker.note(Passage::Free, Sign::Failure, 1_000, 1.0, &POLICY);
        breaker.note(Passage::Free, Sign::Nothing, 1_000, 1.0, &POLICY);
        assert_eq!(
            breaker.ask(1_000),
            Passage::Blocked(1_000),
            "the probe is on its way"
        );
        let change = breaker.note(Passage::Free, Sign::Life, 1_000, 1.0, &POLICY);
        assert_eq!(change, Some(Change::Closed));
    }

    #[test]
    fn the_jitter_takes_half_of_the_wait_at_most_and_never_all() {
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
    fn a_policy_of_no_failures_never_opens() {
        let never = BreakerPolicy {
            failures: 0,
            ..POLICY
        };
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            assert_eq!(
                breaker.note(Passage::Free, Sign::Failure, 0, 1.0, &never),
                None
            );
        }
        assert_eq!(breaker.ask(0), Passage::Free);
    }
}
