//! The only reader of wall time. All other code takes `now` as an argument.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The wall clock of this process.
#[derive(Clone, Copy, Debug)]
pub struct Clock(());

impl Clock {
    /// The clock of the operating system.
    pub fn system() -> Self {
        Self(())
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this crate is the only reader of the clock"
    )]
    pub fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    /// Time since 1970. Earlier times read as 0.
    pub fn since_epoch(&self) -> Duration {
        self.now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        i64::try_from(self.since_epoch().as_millis()).unwrap_or(i64::MAX)
    }

    /// Full seconds since 1970.
    pub fn now_seconds(&self) -> i64 {
        self.now_ms() / 1000
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn seconds_match_milliseconds() {
        let clock = Clock::system();
        let before = clock.now_ms() / 1000;
        let seconds = clock.now_seconds();
        let after = clock.now_ms() / 1000;

        assert!(before <= seconds && seconds <= after);
        assert!(seconds > 1_700_000_000);
    }
}
