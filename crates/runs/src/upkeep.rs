//! Upkeep of state in memory.

use std::sync::Arc;
use std::time::Duration;

use crate::breakers::Breakers;
use crate::call_limits::CallLimits;
use crate::lifecycle::Lifecycle;
use crate::rate::EventRates;

/// Pause between two rounds.
const PAUSE: Duration = Duration::from_mins(1);

/// Removes idle entries from limiters and breakers.
pub struct Upkeep {
    pub(super) rates: Arc<EventRates>,
    pub(super) calls: Arc<CallLimits>,
    pub(super) breakers: Breakers,
    pub(super) lifecycle: Lifecycle,
}

impl Upkeep {
    /// Removes idle entries until the process stops.
    pub async fn keep_tidy(&self) {
        let tidy = async {
            loop {
                tokio::time::sleep(PAUSE).await;
                self.rates.forget_idle();
                self.calls.forget_idle();
                self.breakers.forget_old();
            }
        };
        tokio::select! {
            () = self.lifecycle.closing.cancelled() => {}
            () = tidy => {}
        }
    }
}
