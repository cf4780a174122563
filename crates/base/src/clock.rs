//! The only reader of wall time. All other code takes `now` as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

/// The wall clock of this process.
#[derive(Clone, Copy, Debug)]
pub struct Clock(());

impl Clock {
    /// The clock of the operating system.
    pub fn system() -> Self {
        Self(())
    }

    /// Milliseconds since 1970. Earlier times read as 0.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the clock"
    )]
    pub fn now_ms(&self) -> i64 {
        let since_epoch = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
    }

    /// Seconds since 1970, rounded down.
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
