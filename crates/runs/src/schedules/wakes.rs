//! Wakes: requested and cancelled by host calls of a run.

use domain::canonical::canonical_json;
use domain::schedule::{wake_event, wake_time};
use protocol::event::EventEnvelope;
use protocol::schedule::WakeRequest;
use store::{
    CancelWake, RequestWake, StoreError, WakeCancelled, WakeRecord, WakeScope, WakeStored,
    sha256_hex,
};
use uuid::Uuid;

use super::Schedules;
use crate::call_abort::AbortReason;
use crate::grant::Grant;

/// Cause of a call about a wake that fails.
#[derive(Debug, thiserror::Error)]
pub enum WakeError {
    #[error("another wake of this conversation has this key")]
    Mismatch,
    #[error("the agent has as many pending wakes as it may")]
    TooMany,
    #[error("the wake is due already")]
    TooLate,
    #[error("the conversation has no wake with this key")]
    Unknown,
    #[error("the run is over")]
    Over(AbortReason),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Schedules {
    /// Stores a wake for the agent of a run. The request is valid.
    pub async fn request_wake(
        &self,
        grant: &Grant,
        request: &WakeRequest,
    ) -> Result<WakeRecord, WakeError> {
        let run = &grant.run;
        let events = self.deps.store.events();
        let origin = events.find_event(&run.workspace, &run.event_id).await?;
        let corrupt = || StoreError::Corrupt {
            column: "events.envelope",
            row: run.event_id.clone(),
        };
        let origin = origin.ok_or_else(corrupt)?;
        let origin: EventEnvelope =
            serde_json::from_str(&origin.envelope).map_err(|_| corrupt())?;
        let now = self.now_ms().await?;
        let at = wake_time(request, now.div_euclid(1000));
        let id = Uuid::now_v7();
        let event = wake_event(origin, id, run.id, request, at);
        let store = RequestWake {
            scope: WakeScope::of(run),
            run_id: run.id,
            id,
            key: request.key.clone(),
            request_sha256: sha256_hex(canonical_json(request).as_bytes()),
            event: canonical_json(&event),
            due_at: at.saturating_mul(1000),
            at: now,
        };
        let stored = match self.deps.store.write(store.clone()).await {
            // Another run of the conversation was first: its wake is visible now.
            Err(StoreError::Taken) => self.deps.store.write(store).await?,
            stored => stored?,
        };
        self.queued.notify_one();
        match stored {
            WakeStored::Stored(record) => Ok(record),
            WakeStored::Mismatch => Err(WakeError::Mismatch),
            WakeStored::Full => Err(WakeError::TooMany),
            WakeStored::RunEnded => Err(WakeError::Over(AbortReason::Ended)),
        }
    }

    /// Cancels a wake of the run's agent and conversation.
    pub async fn cancel_wake(&self, grant: &Grant, key: String) -> Result<WakeRecord, WakeError> {
        let cancel = CancelWake {
            scope: WakeScope::of(&grant.run),
            key,
            at: self.now_ms().await?,
        };
        match self.deps.store.write(cancel).await? {
            WakeCancelled::Cancelled(record) => Ok(record),
            WakeCancelled::TooLate => Err(WakeError::TooLate),
            WakeCancelled::Unknown => Err(WakeError::Unknown),
        }
    }
}
