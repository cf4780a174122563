//! When a call that a runner has made must be given up: its run is over, or shall end.

use std::time::Duration;

use protocol::run::RunStatus;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::runs::Runs;
use crate::runs::grant::Grant;

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

    /// Waits until a call of this run has no caller any more. A run that another replica drives is looked
    /// at every `bus.poll_seconds`.
    pub async fn until_over(&self, grant: &Grant) -> Over {
        tokio::select! {
            () = tokio::time::sleep(self.time_left(grant)) => Over::Deadline,
            over = self.until_ended(grant) => over,
            () = self.0.closing.cancelled() => Over::Stopping,
        }
    }

    async fn until_ended(&self, grant: &Grant) -> Over {
        let id = grant.run.id;
        if let Some(live) = self.0.live.get(id) {
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
            tokio::time::sleep(self.0.limits.poll).await;
            // A database that is away ends nothing: the deadline does.
            let Ok(row) = self.0.store.find_run(&grant.run.workspace, id).await else {
                continue;
            };
            match row {
                Some(run) if run.cancel_requested_at.is_some() => return Over::Cancelled,
                Some(run) if run.status == RunStatus::Running && run.attempt == grant.attempt => {}
                _ => return Over::Ended,
            }
        }
    }
}
