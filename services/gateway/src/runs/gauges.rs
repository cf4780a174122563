//! What is looked at for whoever watches from outside.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::runs::Runs;
use crate::telemetry::metrics::{self, Here};

/// Between two looks at the database. However often somebody asks, it is looked at no more often.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// A database that has not answered by then is not ready.
const PATIENCE: Duration = Duration::from_secs(2);

impl Runs {
    /// Looks at the database, and has `settle` put in order what was counted, until the process stops.
    pub async fn keep_gauges(&self, settle: impl Fn()) {
        let mut tick = interval(BETWEEN_LOOKS);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.0.closing.cancelled() => return,
                _ = tick.tick() => {}
            }
            self.look().await;
            settle();
        }
    }

    async fn look(&self) {
        let store = &self.0.store;
        let reachable = timeout(PATIENCE, store.is_reachable()).await;
        let ready = reachable.unwrap_or(false) && !self.0.stopping.is_cancelled();
        metrics::ready_is(ready);
        // What was counted last stands until the database answers again.
        if let Ok(Ok(counts)) = timeout(PATIENCE, store.count_active_runs()).await {
            for (status, count) in counts {
                metrics::runs_are(status.as_str(), count);
            }
        }
    }

    /// What can be told without the database.
    pub fn here(&self) -> Here {
        Here {
            live_runs: self.0.live.count(),
            queued_writes: self.0.store.queued_writes(),
        }
    }
}
