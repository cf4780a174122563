//! Calls that wait for a raise of a budget.
//!
//! A call beyond a budget with `on_reached = "pause"` asks a question, or joins the open one of its run. It tries its
//! reservation again after an answer, a change of the budget, a reset, and from time to time: settled calls use less than
//! they have reserved. The question is a row, so an answer reaches the calls of all replicas.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use domain::budget::{BudgetExceeded, BudgetReached};
use egress::limiter::LimitSpec;
use store::{AskBudget, BudgetLine, BudgetQuestion, CloseBudgetQuestion, StoreError};
use tokio::time::Instant;
use uuid::Uuid;

use crate::budget_cache::WorkspaceBudget;
use crate::call_abort::{AbortReason, CallAborts, RowPoll};
use crate::call_limits::{CallKind, CallPermit};
use crate::deps::RunDeps;
use crate::grant::Grant;
use crate::notifier::RunWaiter;
use telemetry::metrics::{self, BudgetWaitEnd};

/// Minimum pause between two tries: notifications may come in bursts or be forged.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);
/// Interval of looks at the budgets, whose cache is as old.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Interval of tries without a notification.
const TRY_INTERVAL: Duration = Duration::from_secs(5);

/// Cause of a call that waits no longer and is not tried again.
#[derive(Debug, thiserror::Error)]
pub enum BudgetWaitError {
    /// The budget refuses, the answer refuses, or the time to wait is over.
    #[error("the budget refuses the call")]
    Refused,
    #[error("the run has reached its limit of calls that wait for budgets")]
    Full(LimitSpec),
    #[error("the run is over")]
    Over(AbortReason),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Waits for raises.
pub struct BudgetWaits {
    pub(super) deps: Arc<RunDeps>,
    pub(super) aborts: CallAborts,
}

impl BudgetWaits {
    /// The waits of one call, which has not been refused yet.
    pub fn of_call<'a>(&'a self, grant: &'a Grant) -> BudgetWait<'a> {
        BudgetWait {
            waits: self,
            grant,
            slot: None,
        }
    }

    /// Closes a question that a call needs no more. No effect on an answered one.
    async fn close(&self, grant: &Grant, question: Option<String>) -> Result<(), StoreError> {
        let Some(id) = question else {
            return Ok(());
        };
        let run = &grant.run;
        let close = CloseBudgetQuestion {
            workspace: run.workspace.clone(),
            run_id: run.id,
            id,
            at: self.deps.clock.now_ms(),
        };
        self.deps.store.write(close).await?;
        // Other calls of the run may wait for the same question.
        self.deps.notifier.wake(run.id);
        self.deps.notifier.notify_question(run.id);
        Ok(())
    }
}

/// The waits of one call.
pub struct BudgetWait<'a> {
    waits: &'a BudgetWaits,
    grant: &'a Grant,
    /// Present from the first wait on.
    slot: Option<WaitSlot>,
}

/// The concurrency slot of a waiting call, and its question.
struct WaitSlot {
    _permit: CallPermit,
    began: Instant,
    last_look: RowPoll,
    /// The gateway's id of the question.
    question: Option<String>,
}

impl BudgetWait<'_> {
    /// Waits until the reservation should be tried again. `line`: the budget that refused it.
    pub async fn wait(
        &mut self,
        line: &BudgetLine,
        exceeded: &BudgetExceeded,
    ) -> Result<(), BudgetWaitError> {
        if line.budget.reached == BudgetReached::Refuse {
            // A change of the budget may end the pause.
            let question = self.slot.as_mut().and_then(|slot| slot.question.take());
            self.waits.close(self.grant, question).await?;
            return Err(BudgetWaitError::Refused);
        }
        let waited = self.wait_for_change(line, exceeded).await;
        if let (Some(_), Err(error)) = (&self.slot, &waited) {
            metrics::budget_waited(match error {
                BudgetWaitError::Refused => BudgetWaitEnd::Refused,
                _ => BudgetWaitEnd::Aborted,
            });
        }
        waited
    }

    async fn wait_for_change(
        &mut self,
        line: &BudgetLine,
        exceeded: &BudgetExceeded,
    ) -> Result<(), BudgetWaitError> {
        let BudgetWaits { deps, aborts } = self.waits;
        let grant = self.grant;
        let slot = match &mut self.slot {
            Some(slot) => slot,
            none => {
                let permit = deps.calls.begin(grant, CallKind::BudgetWait);
                none.insert(WaitSlot {
                    _permit: permit.map_err(BudgetWaitError::Full)?,
                    began: Instant::now(),
                    last_look: RowPoll::default(),
                    question: None,
                })
            }
        };
        // Registered before the question is read: an answer in between must not be missed.
        let waiter = RunWaiter::of(&deps.notifier, grant.run.id);
        let notifications = waiter.notifications();
        let mut notified = pin!(notifications.notified());
        notified.as_mut().enable();
        let mut changed = pin!(deps.budgets.changed());
        changed.as_mut().enable();
        let workspace = &grant.run.workspace;
        let budgets = deps.budgets.get(&deps.store, workspace).await?;
        // It was changed after the refusal, and before this wait could notice that.
        if !budgets.iter().any(|one| one.budget == line.budget) {
            return Ok(());
        }
        let (id, expires_at) = match ask(deps, grant, line, exceeded).await? {
            NextTry::AfterQuestion { id, expires_at } => (id, expires_at),
            NextTry::Now => return Ok(()),
        };
        let previous = slot.question.replace(id.clone());
        if previous.as_ref() != Some(&id) {
            // Calls that join it notify again, which is harmless.
            deps.notifier.notify_question(grant.run.id);
            // Another budget refuses now, so the call fits into the previous one.
            self.waits.close(grant, previous).await?;
        }
        let began = Instant::now();
        let mut until = began + TRY_INTERVAL.min(deps.time_until(expires_at));
        if let Some(resets_at) = line.resets_at {
            until = until.min(began + deps.time_until(resets_at));
        }
        let watch = async {
            let mut row_at = began + deps.limits.poll;
            loop {
                let is_notified = tokio::select! {
                    () = &mut notified => true,
                    () = tokio::time::sleep(LOOK_INTERVAL) => false,
                };
                if is_notified {
                    // Each commit of the run notifies, so only a closed question leads to a try, which writes.
                    notified.set(notifications.notified());
                    notified.as_mut().enable();
                }
                let current = deps.budgets.get(&deps.store, workspace).await?;
                let is_same = |one: &[WorkspaceBudget]| *one == *budgets;
                if !is_same(&current) {
                    return Ok::<_, StoreError>(());
                }
                if is_notified || Instant::now() >= row_at {
                    row_at = Instant::now() + deps.limits.poll;
                    let questions = deps.store.interactions();
                    if !questions.is_question_open(grant.run.id, &id).await? {
                        return Ok(());
                    }
                }
            }
        };
        tokio::select! {
            () = &mut changed => {}
            () = tokio::time::sleep_until(until) => {}
            watched = watch => watched?,
            over = aborts.until_aborted(grant, &slot.last_look) => {
                return Err(BudgetWaitError::Over(over));
            }
            // The answer may come hours later, and a stop waits for calls.
            () = deps.lifecycle.stopping.cancelled() => {
                return Err(BudgetWaitError::Over(AbortReason::Stopping));
            }
        }
        tokio::time::sleep_until(began + BETWEEN_TRIES).await;
        Ok(())
    }

    /// Ends the waits of a call whose reservation has succeeded. Returns the time that it has waited.
    pub async fn end(self) -> Result<Duration, StoreError> {
        let Some(slot) = self.slot else {
            return Ok(Duration::ZERO);
        };
        metrics::budget_waited(BudgetWaitEnd::Continued);
        self.waits.close(self.grant, slot.question).await?;
        Ok(slot.began.elapsed())
    }
}

/// Time of the next try.
enum NextTry {
    AfterQuestion {
        id: String,
        /// Epoch milliseconds.
        expires_at: i64,
    },
    Now,
}

async fn ask(
    deps: &RunDeps,
    grant: &Grant,
    line: &BudgetLine,
    exceeded: &BudgetExceeded,
) -> Result<NextTry, BudgetWaitError> {
    let ask = AskBudget {
        id: Uuid::now_v7(),
        workspace: grant.run.workspace.clone(),
        run_id: grant.run.id,
        line: line.clone(),
        exceeded: exceeded.clone(),
        at: deps.clock.now_ms(),
    };
    match deps.store.write(ask).await? {
        BudgetQuestion::Open { id, expires_at } => Ok(NextTry::AfterQuestion { id, expires_at }),
        BudgetQuestion::Raised => Ok(NextTry::Now),
        BudgetQuestion::Refused => Err(BudgetWaitError::Refused),
        BudgetQuestion::RunOver if deps.live.is_cancel_requested(grant) => {
            Err(BudgetWaitError::Over(AbortReason::Cancelled))
        }
        BudgetQuestion::RunOver => Err(BudgetWaitError::Over(AbortReason::Ended)),
    }
}
