//! Platform actions: requests of live runs, waits for their outcome, claims and results of programs.

use std::sync::Arc;
use std::time::Duration;

use domain::platform_action::CheckedAction;
use protocol::id::RunId;
use protocol::platform_action::ActionApproval;
use store::{
    ActionClaim, ActionOpened, ActionResultStored, ClaimPlatformAction, CloseExpiredAction,
    FinishPlatformAction, NewPlatformAction, PlatformActionRecord, RequestPlatformAction,
    StoreError,
};
use tokio::time::Instant;

use crate::call_abort::{AbortReason, CallAborts};
use crate::call_limits::CallKind;
use crate::call_wait::{BETWEEN_LOOKS, CallWait, Looked, WaitError, Waited};
use crate::deps::RunDeps;
use crate::grant::Grant;

/// Time for the event of a requested action to be committed. Afterwards the call returns without its sequence.
const ANNOUNCE_TIMEOUT: Duration = Duration::from_secs(2);

/// Cause of a call about a platform action that fails.
#[derive(Debug, thiserror::Error)]
pub enum PlatformCallError {
    #[error("the run has no platform action with this id")]
    Unknown,
    #[error("another request of this run has this idempotency key")]
    Mismatch,
    #[error("the run has requested as many platform actions as it may")]
    TooMany,
    #[error(transparent)]
    Wait(#[from] WaitError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Opens, awaits, claims and finishes platform actions.
pub struct PlatformActions {
    pub(super) deps: Arc<RunDeps>,
    pub(super) aborts: CallAborts,
}

impl PlatformActions {
    /// Opens an action for a host call. It returns after the commit of the action's event, or after 2 seconds.
    pub async fn request(
        &self,
        grant: &Grant,
        action: CheckedAction,
    ) -> Result<PlatformActionRecord, PlatformCallError> {
        let run = &grant.run;
        let needs_person = action.approval == ActionApproval::Ask;
        let new = NewPlatformAction::new(run.id, action, None);
        let id = new.id.to_string();
        let opened = self.deps.store.write(RequestPlatformAction {
            workspace: run.workspace.clone(),
            run_id: run.id,
            action: new,
            at: self.deps.clock.now_ms(),
        });
        match opened.await? {
            ActionOpened::Stored => {}
            ActionOpened::Mismatch => return Err(PlatformCallError::Mismatch),
            ActionOpened::Full => return Err(PlatformCallError::TooMany),
            ActionOpened::RunEnded => return Err(WaitError::Over(AbortReason::Ended).into()),
        }
        self.notify(run.id);
        if needs_person {
            self.deps.notifier.notify_question(run.id);
        }
        self.until_announced(grant, &id).await
    }

    async fn until_announced(
        &self,
        grant: &Grant,
        id: &str,
    ) -> Result<PlatformActionRecord, PlatformCallError> {
        let until = Instant::now() + ANNOUNCE_TIMEOUT;
        let mut pause = BETWEEN_LOOKS;
        loop {
            let found = self.find(grant, id).await?;
            if found.sequence.is_some() || Instant::now() >= until {
                return Ok(found);
            }
            // The relay of the run may be on another replica, whose commits are not announced one by one.
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(250));
        }
    }

    /// State of an action of a live run. It returns when the state is final, `wait` is over, or the run is to end.
    pub async fn await_action(
        &self,
        grant: &Grant,
        id: &str,
        wait: Duration,
    ) -> Result<PlatformActionRecord, PlatformCallError> {
        let kind = CallKind::InteractionWait;
        let call = CallWait::begin(&self.aborts, grant, kind, grant.run.id)?;
        let deadline = Instant::now() + wait;
        let waited = call.until_done(|looked_at| async move {
            let found = self.look(grant, id).await?;
            let status = found.status_at(self.deps.clock.now_ms());
            if status.is_final() || looked_at >= deadline {
                return Ok::<_, PlatformCallError>(Looked::Done(found));
            }
            let expires_in = self.deps.time_until(found.expires_at);
            let next_look = looked_at + expires_in.min(self.deps.limits.poll);
            Ok(Looked::Again(next_look.min(deadline)))
        });
        match waited.await? {
            Waited::Done(found) => Ok(found),
            Waited::Over(AbortReason::Cancelled | AbortReason::Stopping) => {
                self.look(grant, id).await
            }
            Waited::Over(over) => Err(WaitError::Over(over).into()),
        }
    }

    /// Reads an action of the run, after making the end of its period final.
    async fn look(
        &self,
        grant: &Grant,
        id: &str,
    ) -> Result<PlatformActionRecord, PlatformCallError> {
        let found = self.find(grant, id).await?;
        let now = self.deps.clock.now_ms();
        if !found.has_lapsed(now) {
            return Ok(found);
        }
        // Before the response: no claim or result may be accepted once the run has received `expired`.
        let close = CloseExpiredAction {
            workspace: grant.run.workspace.clone(),
            run_id: grant.run.id,
            id: found.id,
            at: now,
        };
        self.deps.store.write(close).await?;
        self.notify(grant.run.id);
        // Read again: a result may have been stored before the close.
        self.find(grant, id).await
    }

    async fn find(
        &self,
        grant: &Grant,
        id: &str,
    ) -> Result<PlatformActionRecord, PlatformCallError> {
        let run = &grant.run;
        let actions = self.deps.store.interactions();
        let found = actions.find_platform_action(&run.workspace, id).await?;
        // An action of another run looks like one that does not exist.
        let own = found.filter(|found| found.run_id == run.id);
        own.ok_or(PlatformCallError::Unknown)
    }

    /// Claims an action for a program.
    pub async fn claim(&self, claim: ClaimPlatformAction) -> Result<ActionClaim, StoreError> {
        let run = claim.run_id;
        let claimed = self.deps.store.write(claim).await?;
        if matches!(claimed, ActionClaim::Claimed(_)) {
            self.notify(run);
        }
        Ok(claimed)
    }

    /// Stores the result of a program.
    pub async fn finish(
        &self,
        finish: FinishPlatformAction,
    ) -> Result<ActionResultStored, StoreError> {
        let run = finish.run_id;
        let finished = self.deps.store.write(finish).await?;
        if matches!(finished, ActionResultStored::Stored(_)) {
            self.notify(run);
        }
        Ok(finished)
    }

    /// Wakes calls that wait, on each replica, and viewers of the feed.
    fn notify(&self, run: RunId) {
        self.deps.notifier.wake(run);
        self.deps.notifier.notify_action(run);
    }
}
