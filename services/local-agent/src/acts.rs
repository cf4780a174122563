//! What a run has done to the world.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a run has called a tool that may change something. Whoever posts its event again may do that twice, so a
/// run that has acted never fails as one to be tried again.
#[derive(Debug, Default)]
pub(crate) struct Acts(AtomicBool);

impl Acts {
    pub(crate) fn add(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
