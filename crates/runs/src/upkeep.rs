//! Upkeep of state in memory.

use std::sync::Arc;
use std::time::Duration;

use crate::deps::RunDeps;

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_mins(1);

/// Removes idle entries from limiters, breakers and caches.
pub struct Upkeep {
    pub(super) deps: Arc<RunDeps>,
}

impl Upkeep {
    /// Removes idle entries until the process stops.
    pub async fn keep_tidy(&self) {
        let tidy = async {
            loop {
                tokio::time::sleep(PAUSE).await;
                self.deps.rates.forget_idle();
                self.deps.own_limits.forget_idle();
                self.deps.calls.forget_idle();
                self.deps.breakers.forget_old();
                self.deps.budgets.forget_idle();
            }
        };
        self.deps.until_closing(tidy).await;
    }
}
