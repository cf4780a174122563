//! The one place that reads the system's clock.

use std::time::SystemTime;

/// The time by the clock of this machine.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
