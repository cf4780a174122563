//! Pauses by operators: they hold dispatches, delay host calls and cancel live runs.
//!
//! Rows decide about dispatches, in the statement of each. A copy in memory, read twice a second, decides about the
//! rest.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use protocol::pause::PauseMode;
use store::{
    CancelCause, ChangeStamp, PauseRecord, PauseScope, ReleaseHeld, ResumePause, SetPause,
    StoreError,
};

use crate::call_abort::{AbortReason, CallAborts, RowPoll};
use crate::cancel::Cancellation;
use crate::deps::RunDeps;
use crate::executor::RunExecutor;
use crate::grant::Grant;
use crate::pause_board::is_frozen;

/// Time between two reads of the pauses: other replicas notice a change after it.
const BETWEEN_READS: Duration = Duration::from_millis(500);
/// The same while a pause is resuming.
const BETWEEN_RELEASES: Duration = Duration::from_millis(100);
/// Maximum wait of a host call. It is shorter than the timeouts of usual clients.
const MAX_CALL_WAIT: Duration = Duration::from_secs(10);
/// Runs that are cancelled concurrently.
const CANCELS: u64 = 100;
/// Status reason of cancelled runs, if the operator gave none.
const PAUSED: &str = "paused";

/// A host call waited for the end of a pause, and may be sent again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallsPaused;

/// Wait of a host call for the end of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseWait {
    /// No pause delays the call.
    None,
    /// The pause or the run is over. The run may have changed meanwhile.
    Over,
}

/// Sets, applies and ends pauses.
pub struct Pauses {
    deps: Arc<RunDeps>,
    executor: Arc<RunExecutor>,
    cancellation: Arc<Cancellation>,
    aborts: CallAborts,
}

impl Pauses {
    pub(super) fn new(
        deps: &Arc<RunDeps>,
        executor: &Arc<RunExecutor>,
        cancellation: &Arc<Cancellation>,
    ) -> Self {
        Self {
            deps: Arc::clone(deps),
            executor: Arc::clone(executor),
            cancellation: Arc::clone(cancellation),
            aborts: CallAborts {
                deps: Arc::clone(deps),
            },
        }
    }

    /// The pauses as this process has read them last, oldest first.
    pub fn current(&self) -> Arc<[PauseRecord]> {
        self.deps.pauses.current()
    }

    /// Sets a pause. Afterwards no dispatch begins in its scope; other replicas freeze and cancel within a second. False:
    /// there are too many pauses.
    pub async fn pause(&self, pause: PauseRecord, stamp: ChangeStamp) -> Result<bool, StoreError> {
        let is_set = self.deps.store.change(stamp, SetPause(pause)).await?;
        self.apply_change().await;
        Ok(is_set)
    }

    /// Begins to end a pause. `None`: there is no such pause.
    pub async fn resume(
        &self,
        scope: PauseScope,
        runs_per_second: u32,
        stamp: ChangeStamp,
    ) -> Result<Option<PauseRecord>, StoreError> {
        let resume = ResumePause {
            scope,
            runs_per_second,
        };
        let resumed = self.deps.store.change(stamp, resume).await?;
        self.apply_change().await;
        Ok(resumed)
    }

    /// Applies a stored change at once. An error is no error of the change: the next step repeats it.
    async fn apply_change(&self) {
        if let Err(error) = self.step().await {
            let error = &error as &dyn std::error::Error;
            tracing::warn!(error, "cannot apply a pause at once, trying again");
        }
    }

    /// Delays a host call while the run is frozen, at most 10 s and until the run is over.
    pub async fn delay_call(&self, grant: &Grant) -> Result<PauseWait, CallsPaused> {
        let (workspace, agent) = (&grant.run.workspace, grant.run.agent_id);
        let mut pauses = self.deps.pauses.0.subscribe();
        if !is_frozen(&pauses.borrow(), workspace, agent) {
            return Ok(PauseWait::None);
        }
        let row_poll = RowPoll::default();
        tokio::select! {
            _ = pauses.wait_for(|pauses| !is_frozen(pauses, workspace, agent)) => Ok(PauseWait::Over),
            // A stop of the gateway does not end the pause.
            over = self.aborts.until_aborted(grant, &row_poll) => match over {
                AbortReason::Stopping => Err(CallsPaused),
                _ => Ok(PauseWait::Over),
            },
            () = tokio::time::sleep(MAX_CALL_WAIT) => Err(CallsPaused),
        }
    }

    /// Reads and applies the pauses until the process stops.
    pub async fn keep_pauses(&self) {
        let applying = async {
            let mut is_failing = false;
            loop {
                let stepped = self.step().await;
                if let Err(error) = &stepped
                    && !is_failing
                {
                    let error = error as &dyn std::error::Error;
                    tracing::error!(error, "cannot read or apply the pauses, trying again");
                }
                is_failing = stepped.is_err();
                tokio::time::sleep(self.until_next_step()).await;
            }
        };
        self.deps.until_closing(applying).await;
    }

    fn until_next_step(&self) -> Duration {
        let pauses = self.deps.pauses.0.borrow();
        let is_resuming = pauses.iter().any(|pause| pause.mode == PauseMode::Resuming);
        if is_resuming {
            BETWEEN_RELEASES
        } else {
            BETWEEN_READS
        }
    }

    async fn step(&self) -> Result<(), StoreError> {
        self.deps.pauses.refresh(&self.deps.store).await?;
        let mut is_over = false;
        for pause in &*self.current() {
            // Another replica or the next start goes on.
            if self.deps.lifecycle.stopping.is_cancelled() {
                return Ok(());
            }
            match pause.mode {
                PauseMode::Hold | PauseMode::Freeze => {}
                PauseMode::Stop => self.cancel_running(pause).await?,
                PauseMode::Resuming => is_over |= self.release(&pause.scope).await?,
            }
        }
        if is_over {
            self.deps.pauses.refresh(&self.deps.store).await?;
        }
        Ok(())
    }

    /// Cancels live runs of the scope, also those that another replica dispatched a moment ago.
    async fn cancel_running(&self, pause: &PauseRecord) -> Result<(), StoreError> {
        let reason = pause.reason.as_deref().unwrap_or(PAUSED);
        loop {
            let pauses = self.deps.store.agents();
            let running = pauses.running_runs(&pause.scope, CANCELS).await?;
            let cancels = running.iter().map(|run| {
                let request = CancelCause {
                    by: pause.paused_by.clone(),
                    reason: Some(reason.to_owned()),
                };
                self.cancellation.cancel(&run.workspace, run.id, request)
            });
            // Concurrent, so that the requests share commits.
            for cancelled in join_all(cancels).await {
                cancelled?;
            }
            // A requested cancel takes the run off the list, so each page has other runs.
            let is_last = u64::try_from(running.len()).unwrap_or(u64::MAX) < CANCELS;
            if is_last || self.deps.lifecycle.stopping.is_cancelled() {
                return Ok(());
            }
        }
    }

    /// Dispatches held runs that are due. True: the pause is over.
    async fn release(&self, scope: &PauseScope) -> Result<bool, StoreError> {
        let released = self.deps.store.write(ReleaseHeld(scope.clone())).await?;
        if released.runs.is_empty() {
            return Ok(released.is_last);
        }
        // The copy in memory still holds them.
        self.deps.pauses.refresh(&self.deps.store).await?;
        for run in released.runs {
            self.executor.spawn(run.id, run.workspace, None);
        }
        Ok(released.is_last)
    }
}
