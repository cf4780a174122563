//! When a call that a runner has made must be given up: its run is over, or shall end.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use protocol::run::RunStatus;
use store::StoreError;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::Runs;
use crate::grant::Grant;

/// Why a call of a run does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// The run was asked to end.
    Cancelled,
    /// It has ended, or another attempt has begun.
    Ended,
    /// It is past its deadline.
    Deadline,
    /// It lives on elsewhere, and this gateway goes.
    Stopping,
}

/// The state of a run as this process knows it without a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    Lives,
    Over(Over),
    /// The lease is not held here, or the terminal is being written: the row tells.
    Unknown,
}

/// When a call last read the row of its run.
#[derive(Default)]
pub struct LastLook(Mutex<Option<Instant>>);

impl LastLook {
    /// Until when the next read is due: at once for the first.
    fn due(&self, interval: Duration) -> Instant {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        last.map_or_else(Instant::now, |last| last + interval)
    }

    fn note(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }
}

/// The state of one attempt in the row of its run.
struct RowState {
    cancelled: bool,
    lives: bool,
}

impl Runs {
    /// A call that is under way: a stop waits for it, within the grace, until this is dropped.
    pub fn under_way(&self) -> TaskTrackerToken {
        self.0.tasks.token()
    }

    /// What is left of a run's time.
    pub fn time_left(&self, grant: &Grant) -> Duration {
        let left = grant.run.deadline_at - self.0.clock.now_ms();
        Duration::from_millis(u64::try_from(left).unwrap_or(0))
    }

    /// Whether this process drives the run of a grant.
    pub fn drives(&self, grant: &Grant) -> bool {
        self.0.live.contains(grant.run.id)
    }

    /// The state of the run of a grant, from memory.
    pub fn known_state(&self, grant: &Grant) -> Known {
        if self.time_left(grant).is_zero() {
            return Known::Over(Over::Deadline);
        }
        let live = self.0.live.get(grant.run.id);
        let current = live.and_then(|live| live.grant(Instant::now()));
        match current {
            None => Known::Unknown,
            Some(current) if current.attempt != grant.attempt => Known::Over(Over::Ended),
            Some(_) if self.is_cancel_requested(grant) => Known::Over(Over::Cancelled),
            Some(_) => Known::Lives,
        }
    }

    /// The state of the run of a grant, from its row. A run that has ended is that first, and cancelled second.
    pub async fn stored_over(&self, grant: &Grant) -> Result<Option<Over>, StoreError> {
        let state = self.row_state(grant).await?;
        Ok(match state {
            RowState { lives: false, .. } => Some(Over::Ended),
            RowState {
                cancelled: true, ..
            } => Some(Over::Cancelled),
            RowState { .. } => None,
        })
    }

    async fn row_state(&self, grant: &Grant) -> Result<RowState, StoreError> {
        let run = &grant.run;
        let row = self.0.store.runs().find_run(&run.workspace, run.id).await?;
        Ok(RowState {
            cancelled: row
                .as_ref()
                .is_some_and(|row| row.cancel_requested_at.is_some()),
            lives: row.is_some_and(|row| {
                row.status == RunStatus::Running && row.attempt == grant.attempt
            }),
        })
    }

    /// Waits until a call of this run has no caller any more. The row of a run that another replica drives is
    /// read at once, and then every `bus.poll_seconds`.
    pub async fn until_over(&self, grant: &Grant, last_look: &LastLook) -> Over {
        tokio::select! {
            () = tokio::time::sleep(self.time_left(grant)) => Over::Deadline,
            over = self.until_ended(grant, last_look) => over,
            () = self.0.closing.cancelled() => Over::Stopping,
        }
    }

    async fn until_ended(&self, grant: &Grant, last_look: &LastLook) -> Over {
        if let Some(live) = self.0.live.get(grant.run.id) {
            let mut progress = live.log.subscribe();
            let ended = progress.wait_for(|progress| progress.ended);
            tokio::select! {
                () = live.cancel.cancelled() => return Over::Cancelled,
                ended = ended => if ended.is_ok_and(|progress| progress.settled) {
                    return Over::Ended;
                },
                () = live.lost.cancelled() => {}
            }
            // It may live on, with another owner.
        }
        loop {
            tokio::time::sleep_until(last_look.due(self.0.limits.poll)).await;
            let state = self.row_state(grant).await;
            last_look.note();
            // A database that is away ends nothing: the deadline does.
            match state {
                Ok(RowState {
                    cancelled: true, ..
                }) => return Over::Cancelled,
                Ok(RowState { lives: false, .. }) => return Over::Ended,
                Ok(_) | Err(_) => {}
            }
        }
    }
}
