//! System clock of the service. All other modules are barred from `SystemTime::now` by clippy.

use std::time::SystemTime;

/// Current wall-clock time. It may jump; deadlines use `tokio::time::Instant`.
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}
