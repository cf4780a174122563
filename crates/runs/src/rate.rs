//! How fast events may come, workspace by workspace, on this replica: decided before the event
//! touches the database.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::clock::{Clock as _, DefaultClock};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use protocol::id::WorkspaceId;

use crate::Runs;

/// Between two times at which what is idle is forgotten.
const TIDY: Duration = Duration::from_mins(1);

/// Events of one workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRate {
    pub per_second: NonZeroU32,
    /// How many may come at once after a rest.
    pub burst: NonZeroU32,
}

/// The buckets of all workspaces.
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

    /// Takes one event in; else says how long to wait.
    pub(super) fn admit(&self, workspace: &WorkspaceId) -> Result<(), Duration> {
        let Some(limiter) = &self.limiter else {
            return Ok(());
        };
        limiter
            .check_key(workspace)
            .map_err(|early| early.wait_time_from(self.clock.now()))
    }

    fn forget_idle(&self) {
        if let Some(limiter) = &self.limiter {
            limiter.retain_recent();
            limiter.shrink_to_fit();
        }
    }
}

impl Runs {
    /// Forgets buckets that are full again, runs that do not call, and circuits that nobody asks about, until the process stops.
    pub async fn keep_tidy(&self) {
        let tidy = async {
            loop {
                tokio::time::sleep(TIDY).await;
                self.0.rates.forget_idle();
                self.0.calls.forget_idle(self.0.clock.now_ms());
                self.0.breakers.forget_old();
            }
        };
        tokio::select! {
            () = self.0.closing.cancelled() => {}
            () = tidy => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workspace_that_floods_waits_and_its_neighbour_does_not() {
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
