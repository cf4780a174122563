//! Clock of a run: wall time at its start plus monotonic time since then.

use std::time::Duration;

use action_graph::graph::Millis;
use clock::Clock;
use tokio::time::Instant;

/// Clock of one run. It is monotonic and follows tokio's clock, which tests can pause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock {
    start: Instant,
    start_ms: Millis,
}

impl RunClock {
    /// Starts the clock at the current wall time.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            start_ms: millis(Clock::system().since_epoch()),
        }
    }

    /// Milliseconds since the epoch.
    pub(crate) fn now(&self) -> Millis {
        self.start_ms.saturating_add(millis(self.start.elapsed()))
    }

    /// Milliseconds since the start of the run.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        millis(self.start.elapsed())
    }

    /// Monotonic instant of a time in milliseconds since the epoch.
    pub(crate) fn instant(&self, at: Millis) -> Instant {
        self.start + Duration::from_millis(at.saturating_sub(self.start_ms))
    }
}

pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
