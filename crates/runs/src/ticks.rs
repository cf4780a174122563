//! Intervals of background work.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

/// Ticks with this pause. After a delay, the next tick comes a full pause later.
pub(super) fn ticks_every(pause: Duration) -> Interval {
    let mut ticks = interval(pause);
    // The default would send all missed ticks at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
