//! Records whether a run has caused side effects.

use std::sync::atomic::{AtomicBool, Ordering};

/// Set once a run has called a tool that may write. A second run of the same event could repeat the write, so a
/// run with side effects never fails as retryable.
#[derive(Debug, Default)]
pub(crate) struct SideEffects(AtomicBool);

impl SideEffects {
    pub(crate) fn add(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
