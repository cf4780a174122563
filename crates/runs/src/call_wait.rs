//! Host calls that wait: for a change that a notification announces, a time, or the end of their run.

use std::pin::pin;
use std::time::Duration;

use egress::limiter::LimitSpec;
use protocol::id::RunId;
use store::StoreError;
use tokio::time::Instant;

use crate::call_abort::{AbortReason, CallAborts, RowPoll};
use crate::call_limits::{CallKind, CallPermit};
use crate::grant::Grant;
use crate::notifier::RunWaiter;

/// Minimum pause between two looks of a waiting call.
pub(crate) const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// Cause of a call that cannot wait.
#[derive(Debug, thiserror::Error)]
pub enum WaitError {
    #[error("the run has reached its limit of waiting calls")]
    Full(LimitSpec),
    #[error("the run is over")]
    Over(AbortReason),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Result of one look.
pub(crate) enum Looked<T> {
    Done(T),
    /// Look again at a notification, and at this time at the latest.
    Again(Instant),
}

/// End of a wait.
pub(crate) enum Waited<T> {
    Done(T),
    Over(AbortReason),
}

/// A waiting call of a run. It holds a permit.
pub(crate) struct CallWait<'a> {
    aborts: &'a CallAborts,
    grant: &'a Grant,
    /// Registered before the first look: a commit in between must not be missed.
    pub(crate) waiter: RunWaiter,
    _permit: CallPermit,
}

impl<'a> CallWait<'a> {
    /// Begins a wait for changes of the run `watched`.
    pub(crate) fn begin(
        aborts: &'a CallAborts,
        grant: &'a Grant,
        kind: CallKind,
        watched: RunId,
    ) -> Result<Self, WaitError> {
        let permit = aborts.deps.calls.begin(grant, kind);
        Ok(Self {
            aborts,
            grant,
            _permit: permit.map_err(WaitError::Full)?,
            waiter: RunWaiter::of(&aborts.deps.notifier, watched),
        })
    }

    /// Looks until `look` is done, or the run of the call is to end. `look` gets its time.
    pub(crate) async fn until_done<T, E, F>(
        &self,
        look: impl Fn(Instant) -> F,
    ) -> Result<Waited<T>, E>
    where
        F: Future<Output = Result<Looked<T>, E>>,
    {
        let last_look = RowPoll::default();
        let mut over = pin!(self.aborts.until_aborted(self.grant, &last_look));
        loop {
            let notifications = self.waiter.notifications();
            let mut notified = pin!(notifications.notified());
            // Enabled before the look, so that no notification is missed.
            notified.as_mut().enable();
            let looked_at = Instant::now();
            let next_look = match look(looked_at).await? {
                Looked::Done(found) => return Ok(Waited::Done(found)),
                Looked::Again(at) => at,
            };
            tokio::select! {
                // Notifications may come in bursts or be forged, so the pause bounds the queries.
                () = &mut notified => tokio::time::sleep_until(looked_at + BETWEEN_LOOKS).await,
                () = tokio::time::sleep_until(next_look) => {}
                over = &mut over => return Ok(Waited::Over(over)),
            }
        }
    }
}
