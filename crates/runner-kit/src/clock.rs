//! Wall clock. Only the signature check needs it.

use std::time::{SystemTime, UNIX_EPOCH};

/// Epoch seconds. A clock before 1970 reads as 0.
#[expect(clippy::disallowed_methods, reason = "this is clock.rs")]
pub(crate) fn now_seconds() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|since| i64::try_from(since.as_secs()).ok())
        .unwrap_or_default()
}
