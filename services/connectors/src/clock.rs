//! The wall clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The Unix time. A clock before 1970 reads as 0.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place where connectors read the clock"
)]
pub(crate) fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}
