//! Results that a runner appends after it has answered `202`: taken by any replica, judged by the owner.

use std::time::Duration;

use store::{AppendResults, AuditEntry, Deferral, Heartbeat, ResultsAppended, StoreError};
use tokio::time::Instant;

use crate::bus::Ring;
use crate::runs::Runs;
use crate::runs::grant::Grant;

/// A runner may call before its `202` has been heard here.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

impl Runs {
    /// Stores results of a live run. Its owner judges them, and they appear in the ledger. `None`: another call of the
    /// run waits already for its runner's answer to be known.
    pub async fn append_results(
        &self,
        grant: &Grant,
        results: Vec<(u64, String)>,
        audit: AuditEntry,
    ) -> Result<Option<ResultsAppended>, StoreError> {
        let run_id = grant.run.id;
        let append = std::sync::Arc::new(AppendResults {
            run_id,
            attempt: grant.attempt,
            lease: self.0.limits.append_lease,
            results,
            most_bytes: self.0.limits.results.run_bytes as u64,
            audit,
        });
        let mut outcome = self.0.store.write(std::sync::Arc::clone(&append)).await?;
        if outcome == ResultsAppended::NotDeferred {
            let (store, calls) = (&self.0.store, &self.0.calls);
            let Some(_waits) = calls.begin_wait(run_id, self.0.clock.now_ms()) else {
                return Ok(None);
            };
            let give_up = Instant::now() + ANSWER_PATIENCE;
            while outcome == ResultsAppended::NotDeferred
                && Instant::now() < give_up
                && !store.does_stream(run_id, grant.attempt).await?
            {
                tokio::time::sleep(BETWEEN_LOOKS).await;
                outcome = store.write(std::sync::Arc::clone(&append)).await?;
            }
        }
        if let ResultsAppended::Through(_) = outcome {
            self.0.doorbell.wake(run_id);
            if !self.0.live.contains(run_id) {
                self.0.doorbell.ring(Ring::Advanced(run_id));
            }
        }
        Ok(Some(outcome))
    }

    /// Notes that the runner of a live run is alive. `None`: the run has ended, or its runner does not append.
    pub async fn hear_heartbeat(&self, grant: &Grant) -> Result<Option<Deferral>, StoreError> {
        let heartbeat = Heartbeat {
            run_id: grant.run.id,
            attempt: grant.attempt,
            lease: self.0.limits.append_lease,
        };
        self.0.store.write(heartbeat).await
    }
}
