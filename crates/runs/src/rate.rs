//! Rate limit of events on this replica, checked before the database is used.

use std::num::NonZeroU32;
use std::time::Duration;

use egress::rate::KeyedRate;
use governor::Quota;
use governor::clock::DefaultClock;
use protocol::id::WorkspaceId;

/// Rate limit of one workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventRate {
    pub per_second: NonZeroU32,
    /// Maximum number of events at once, after a pause.
    pub burst: NonZeroU32,
}

/// Rate limiter of events by workspace.
pub(super) struct EventRates(Option<KeyedRate<WorkspaceId>>);

impl EventRates {
    pub(super) fn new(rate: Option<EventRate>) -> Self {
        let quota = |rate: EventRate| Quota::per_second(rate.per_second).allow_burst(rate.burst);
        Self(rate.map(|rate| KeyedRate::new(quota(rate), DefaultClock::default())))
    }

    /// Admits one event, or returns the time to wait.
    pub(super) fn admit(&self, workspace: &WorkspaceId) -> Result<(), Duration> {
        self.0.as_ref().map_or(Ok(()), |rate| rate.admit(workspace))
    }

    pub(super) fn forget_idle(&self) {
        self.0.iter().for_each(KeyedRate::forget_idle);
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
