//! Rate limit of events by workspace, on this replica, checked before the database is used.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use protocol::id::WorkspaceId;

/// Rate limit of one workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRate {
    pub per_second: NonZeroU32,
    /// Maximum number of events at once, after a pause.
    pub burst: NonZeroU32,
}

/// Rate limiter with a bucket for each workspace.
pub(super) struct EventRates {
    limiter: Option<DefaultKeyedRateLimiter<WorkspaceId>>,
    clock: DefaultClock,
}

impl EventRates {
    pub(super) fn new(rate: Option<EventRate>) -> Self {
        let quota = |rate: EventRate| Quota::per_second(rate.per_second).allow_burst(rate.burst);
        Self {
            limiter: rate.map(|rate| RateLimiter::keyed(quota(rate))),
            clock: DefaultClock::default(),
        }
    }

    /// Admits one event, or returns the time to wait.
    pub(super) fn admit(&self, workspace: &WorkspaceId) -> Result<(), Duration> {
        let Some(limiter) = &self.limiter else {
            return Ok(());
        };
        limiter
            .check_key(workspace)
            .map_err(|early| early.wait_time_from(self.clock.now()))
    }

    pub(super) fn forget_idle(&self) {
        if let Some(limiter) = &self.limiter {
            // One bucket per workspace would otherwise stay for ever.
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_event_rate_of_each_workspace_separately() {
        let number = |number| NonZeroU32::new(number).unwrap();
        let rates = EventRates::new(Some(EventRate {
            per_second: number(1),
            burst: number(3),
        }));
        let [one, other] = ["one", "other"].map(|name| WorkspaceId(name.to_owned()));
        for _ in 0..3 {
            assert_eq!(rates.admit(&one), Ok(()));
        }
        let wait = rates.admit(&one).unwrap_err();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        assert_eq!(rates.admit(&other), Ok(()));
        rates.forget_idle();
        assert!(rates.admit(&one).is_err(), "what is not idle is remembered");
        let unbounded = EventRates::new(None);
        assert!((0..1000).all(|_| unbounded.admit(&one).is_ok()));
    }
}
