//! Limits of host calls: rate and concurrency of the runner of each run, on this replica.

use std::num::NonZeroU32;

use egress::limiter::{KeyedLimiter, LimitRefusal, LimitSpec, Permit, Share};
use egress::rate::KeyedRate;
use governor::Quota;
use governor::clock::{Clock, DefaultClock};
use protocol::id::RunId;

use crate::grant::Grant;

/// Host calls of one run per second: 500. A run may double its rate in its first second, which is tolerable here.
const CALLS_PER_SECOND: NonZeroU32 = NonZeroU32::MIN.saturating_add(499);

/// Kind of a call with its own concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Host calls in flight, until their answers are read. The limit exceeds the others, so that heartbeats,
    /// results and token renewals still pass.
    Host,
    /// Uploads and deletes. Each holds a lock of its area or a reservation in it.
    Upload,
    /// Tool calls. All runs share the permits of the tools.
    Tool,
    /// Model calls. Each answer may be large.
    Model,
    /// Searches in knowledge bases.
    Retrieval,
    /// Calls that wait for the runner's answer. Each of them polls.
    AnswerWait,
    /// Calls that wait for answers of persons.
    InteractionWait,
    /// Calls that wait for a raise of a budget. Each of them polls.
    BudgetWait,
    /// Calls that wait for child runs: one for each that a run may start.
    ChildWait,
}

impl CallKind {
    /// Concurrent calls of one run, and the refusal beyond them.
    pub const fn limit(self) -> LimitSpec {
        let (max, reason, message) = match self {
            Self::Host => (
                64,
                "host_calls",
                "the run has reached its limit of concurrent host calls; wait for their responses, and read them",
            ),
            Self::Upload => (
                4,
                "uploads",
                "other uploads and deletes of this run are under way; wait for their answers",
            ),
            Self::Tool => (
                16,
                "tool_calls",
                "the run has reached its limit of concurrent tool calls; wait until one has ended",
            ),
            Self::Model => (
                48,
                "model_calls",
                "the run has reached its limit of concurrent model calls; wait until one has ended",
            ),
            Self::Retrieval => (
                8,
                "retrievals",
                "the run has reached its limit of concurrent searches; wait until one has ended",
            ),
            Self::AnswerWait => (
                1,
                "early_results",
                "another call waits for the response to this run's dispatch; call again after that response",
            ),
            Self::InteractionWait => (
                8,
                "interaction_waits",
                "as many calls of this run wait for interactions as may (8); call again when one of them was answered",
            ),
            Self::BudgetWait => (
                8,
                "budget_waits",
                "as many calls of this run wait for a raise of a budget as may (8); call again when one of them has \
                 ended",
            ),
            Self::ChildWait => (
                16,
                "child_run_waits",
                "as many calls of this run wait for child runs as may (16); call again when one of them has ended",
            ),
        };
        LimitRefusal::new(reason, message).at(max)
    }
}

/// Concurrency slot of a call of a run.
pub type CallPermit = Permit<(RunId, CallKind)>;

/// Limits the calls of each run on this replica.
pub struct CallLimits {
    rate: KeyedRate<RunId>,
    in_flight: KeyedLimiter<(RunId, CallKind)>,
}

impl Default for CallLimits {
    fn default() -> Self {
        Self {
            rate: call_rate(DefaultClock::default()),
            in_flight: KeyedLimiter::of_shares(),
        }
    }
}

fn call_rate<C: Clock + Clone>(clock: C) -> KeyedRate<RunId, C> {
    KeyedRate::new(Quota::per_second(CALLS_PER_SECOND), clock)
}

impl CallLimits {
    /// Counts a host call. False: the run exceeds the rate limit.
    pub fn admit_call(&self, grant: &Grant) -> bool {
        self.rate.admit(&grant.run.id).is_ok()
    }

    /// Acquires a permit for a call, or returns the limit that is reached.
    pub fn begin(&self, grant: &Grant, kind: CallKind) -> Result<CallPermit, LimitSpec> {
        self.acquire(grant.run.id, kind)
    }

    fn acquire(&self, run: RunId, kind: CallKind) -> Result<CallPermit, LimitSpec> {
        let share = Share {
            key: (run, kind),
            limit: kind.limit(),
        };
        self.in_flight.try_acquire([share], 1)
    }

    /// Removes runs without recent calls.
    pub(super) fn forget_idle(&self) {
        self.rate.forget_idle();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use governor::clock::FakeRelativeClock;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn limits_call_rate_of_each_run_separately() {
        let clock = FakeRelativeClock::default();
        let rate = call_rate(clock.clone());
        let [one, other] = [1, 2].map(|n| RunId(Uuid::from_u128(n)));
        let admits = |run| rate.admit(&run).is_ok();
        assert!((0..500).all(|_| admits(one)));
        assert!(!admits(one));
        assert!(admits(other));
        rate.forget_idle();
        assert!(!admits(one), "a counted run stays limited");
        clock.advance(Duration::from_secs(1));
        assert!((0..500).all(|_| admits(one)));
        assert!(!admits(one));
    }

    #[test]
    fn limits_concurrent_uploads_of_each_run() {
        let calls = CallLimits::default();
        let [one, other] = [1, 2].map(|n| RunId(Uuid::from_u128(n)));
        let begin = |run, kind| calls.acquire(run, kind);
        let mut permits: Vec<_> = (0..4)
            .map(|_| begin(one, CallKind::Upload).ok().unwrap())
            .collect();
        let refused = begin(one, CallKind::Upload).err().unwrap();
        assert_eq!(refused.refusal.reason, "uploads");
        assert!(begin(one, CallKind::Tool).is_ok());
        assert!(begin(other, CallKind::Upload).is_ok());
        permits.pop();
        assert!(begin(one, CallKind::Upload).is_ok());
    }
}
