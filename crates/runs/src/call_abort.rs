//! Abort of host calls: their run has ended or is to end.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::run::RunStatus;
use store::StoreError;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::deps::RunDeps;
use crate::grant::Grant;

/// Cause of an aborted call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AbortReason {
    /// Cancellation of the run was requested.
    Cancelled,
    /// The run has ended, or another attempt has begun.
    Ended,
    /// The run is past its deadline.
    Deadline,
    /// This gateway stops; the run continues on another one.
    Stopping,
}

/// State of a run in this process, without a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalRunState {
    Lives,
    Over(AbortReason),
    /// The lease is not held here, or the terminal is being written. Only the row has the state.
    Unknown,
}

/// Time at which a call has last read the row of its run.
#[derive(Default)]
pub struct RowPoll(Mutex<Option<Instant>>);

impl RowPoll {
    /// Time of the next read. The first one is due at once.
    fn due(&self, interval: Duration) -> Instant {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.map_or_else(Instant::now, |last| last + interval)
    }

    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// State of one attempt in the row of its run.
struct RowState {
    cancelled: bool,
    lives: bool,
    /// The run lives in a later attempt.
    has_moved: bool,
}

/// Detects that calls must be aborted.
#[derive(Clone)]
pub struct CallAborts {
    pub(super) deps: Arc<RunDeps>,
}

impl CallAborts {
    /// Tracks a call in progress. A stop waits for it within the grace, until this is dropped.
    pub fn track_call(&self) -> TaskTrackerToken {
        self.deps.lifecycle.tasks.token()
    }

    /// Time until the deadline of a run.
    pub fn time_left(&self, grant: &Grant) -> Duration {
        self.deps.time_until(grant.deadline_at())
    }

    /// True when waits for budgets have moved the deadline of a run into the future. Reads the row.
    pub async fn is_extended(&self, grant: &Grant) -> bool {
        self.deps.refresh_deadline(grant).await;
        !self.time_left(grant).is_zero()
    }

    /// Waits for the deadline of a run.
    async fn until_deadline(&self, grant: &Grant) {
        loop {
            tokio::time::sleep(self.time_left(grant)).await;
            if !self.is_extended(grant).await {
                return;
            }
        }
    }

    /// True when this process drives the run of a grant.
    pub fn drives(&self, grant: &Grant) -> bool {
        self.deps.live.contains(grant.run.id)
    }

    /// The state of the run of a grant, from memory.
    pub fn local_state(&self, grant: &Grant) -> LocalRunState {
        if self.time_left(grant).is_zero() {
            return LocalRunState::Over(AbortReason::Deadline);
        }
        let live = self.deps.live.get(grant.run.id);
        // A lease that has expired here proves nothing: another replica may own the run.
        let current = live.and_then(|live| live.grant(Instant::now()));
        match current {
            None => LocalRunState::Unknown,
            Some(current) if current.attempt != grant.attempt => {
                LocalRunState::Over(AbortReason::Ended)
            }
            Some(_) if self.deps.live.is_cancel_requested(grant) => {
                LocalRunState::Over(AbortReason::Cancelled)
            }
            Some(_) => LocalRunState::Lives,
        }
    }

    /// Reason to abort calls, from the row of the run. `Ended` has precedence over `Cancelled`.
    pub async fn stored_abort(&self, grant: &Grant) -> Result<Option<AbortReason>, StoreError> {
        let state = self.row_state(grant).await?;
        Ok(match state {
            RowState { lives: false, .. } => Some(AbortReason::Ended),
            RowState {
                cancelled: true, ..
            } => Some(AbortReason::Cancelled),
            RowState { .. } => None,
        })
    }

    async fn row_state(&self, grant: &Grant) -> Result<RowState, StoreError> {
        let run = &grant.run;
        let row = self.deps.find_run(&run.workspace, run.id).await?;
        let runs_in = row
            .as_ref()
            .filter(|row| row.status == RunStatus::Running)
            .map(|row| row.attempt);
        Ok(RowState {
            cancelled: row
                .as_ref()
                .is_some_and(|row| row.cancel_requested_at.is_some()),
            lives: runs_in.is_some_and(|attempt| attempt == grant.attempt),
            has_moved: runs_in.is_some_and(|attempt| attempt > grant.attempt),
        })
    }

    /// Waits until the calls of a run must be aborted. It reads the row of a run that another replica drives at
    /// once, and then every `bus.poll_seconds`.
    pub async fn until_aborted(&self, grant: &Grant, last_look: &RowPoll) -> AbortReason {
        tokio::select! {
            () = self.until_deadline(grant) => AbortReason::Deadline,
            over = self.until_ended(grant, last_look) => over,
            () = self.deps.lifecycle.closing.cancelled() => AbortReason::Stopping,
        }
    }

    async fn until_ended(&self, grant: &Grant, last_look: &RowPoll) -> AbortReason {
        if let Some(live) = self.deps.live.get(grant.run.id) {
            let mut progress = live.log.subscribe();
            let ended = progress.wait_for(|progress| progress.ended);
            tokio::select! {
                () = live.cancel.cancelled() => return AbortReason::Cancelled,
                ended = ended => if ended.is_ok_and(|progress| progress.settled) {
                    return AbortReason::Ended;
                },
                () = live.lost.cancelled() => {}
            }
            // The run may continue with another owner.
        }
        loop {
            // `last_look` outlives this future: a restarted wait must not query at once again.
            tokio::time::sleep_until(last_look.due(self.deps.limits.poll)).await;
            let state = self.row_state(grant).await;
            // Noted also after a failure, so that an outage does not cause a busy loop.
            last_look.note();
            // A database outage ends no call; the deadline does.
            match state {
                Ok(RowState {
                    cancelled: true, ..
                }) => return AbortReason::Cancelled,
                // The runner goes on with the answers of its calls after a resume.
                Ok(RowState {
                    has_moved: true, ..
                }) if self.deps.is_resumable(&grant.run).await.unwrap_or(true) => {}
                Ok(RowState { lives: false, .. }) => return AbortReason::Ended,
                Ok(_) | Err(_) => {}
            }
        }
    }
}
