//! A task that attaches to its runner again, or starts a lost run again. The decisions are those of the product.

use std::sync::Arc;

use domain::retry::after_loss;
use domain::run::{Failure, FailureCode};
use http::StatusCode;
use protocol::admin::{RestartPoint, RetryCause, RetryPolicy};
use runner_client::StartError;
use store::{Appended, StoreError};

use super::checks::valid_texts;
use super::database::{Answer, Op, StoredLedger};
use super::driver::Driver;
use super::relaying::{restored, restored_before};
use super::settings::{self, LEASE, RESUME_WITHIN, millis};
use super::task::{CommitStage, FinishStage, Resumption, Retry, Stage};
use crate::dispatch::failure::{ResumeDecision, after_failed_restart, after_failed_resume};
use crate::dispatch::resuming::{LostConnection, PAUSE, runner_without_run};
use crate::ledger::commit::CommitMachine;
use crate::relay::Restart;

/// Reads the ledger of a run whose connection was lost.
pub(super) fn restore(driver: &mut Driver<'_>) {
    driver.task.stage = Stage::Restore(Retry::new());
    driver.request(Op::ReadLedger(driver.task.run.id));
}

pub(super) fn restore_from(driver: &mut Driver<'_>, ledger: StoredLedger) {
    let StoredLedger {
        run,
        lines,
        rejected,
        checkpoint,
    } = ledger;
    let lost = LostConnection::after(driver.task.lost, run.last_sequence, driver.now());
    let attempt = run.attempt;
    driver.task.run = run;
    driver.task.lost = Some(lost);
    driver.task.resumption = Some(Resumption {
        lines,
        rejected,
        after: 0,
        checkpoint,
        start: None,
    });
    let after = restored(driver).stored.through;
    if let Some(resumption) = &mut driver.task.resumption {
        resumption.after = after;
    }
    if lost.is_repeated {
        pause_resume(driver, attempt);
    } else {
        driver.claim(attempt + 1);
    }
}

fn pause_resume(driver: &mut Driver<'_>, attempt: u32) {
    let until = driver.wake_after(PAUSE);
    driver.task.stage = Stage::Backoff { attempt, until };
}

pub(super) fn resume_refused(driver: &mut Driver<'_>, attempt: u32, status: StatusCode) {
    let error = StartError::Refused {
        status,
        retry_after: None,
        excerpt: Vec::new(),
    };
    resume_failed(driver, attempt, &error);
}

pub(super) fn resume_failed(driver: &mut Driver<'_>, attempt: u32, error: &StartError) {
    let resumption = driver.task.resumption.as_ref();
    let is_start = resumption.is_some_and(|resumption| resumption.start.is_some());
    let decision = if is_start {
        after_failed_restart(error)
    } else {
        after_failed_resume(error)
    };
    match decision {
        ResumeDecision::Repeat => pause_resume(driver, attempt),
        ResumeDecision::RunnerLost => restart_or_end(driver),
        ResumeDecision::Attach => restore(driver),
        ResumeDecision::Fail => {
            let code = FailureCode::RunnerFirstByteTimeout;
            driver.finish_with(Failure::new(code, "no answer"));
        }
    }
}

/// Policy of the agent of an event.
fn retry_policy(event: usize) -> RetryPolicy {
    RetryPolicy {
        max: 1,
        on: match event % 3 {
            2 => Vec::new(),
            _ => vec![RetryCause::RunnerLost],
        },
        from: match event % 2 {
            0 => RestartPoint::Start,
            _ => RestartPoint::Checkpoint,
        },
    }
}

/// Starts a run again that its runner has lost, or ends it.
fn restart_or_end(driver: &mut Driver<'_>) {
    let (failure, at) = (runner_without_run(), driver.epoch_ms());
    let run = &driver.task.run;
    let left = u64::try_from(run.deadline_at - at).unwrap_or(0);
    let policy = retry_policy(settings::event_of(run.id));
    let lost = restored(driver);
    let from = after_loss(failure.code, &policy, lost.restarts(), millis(left));
    let from = from.filter(|_| !driver.task.live.cancel.is_cancelled());
    let (Some(from), Some(resumption)) = (from, &driver.task.resumption) else {
        return driver.finish_with(failure);
    };
    let after = match from {
        RestartPoint::Start => 0,
        RestartPoint::Checkpoint => resumption.checkpoint,
    };
    let sequence = run.last_sequence + 1;
    let restored = restored_before(driver, Some(Restart { sequence, after }));
    let mut buffer = restored.restarted(&lost, run, failure.code, from, at / 1000);
    let (append, frames) = buffer.take(None, at);
    let mut commit = CommitStage::new(CommitMachine::new(Arc::new(append), millis(LEASE)));
    commit.send_due(driver);
    driver.task.stage = Stage::Restart(Box::new(FinishStage { commit, frames }));
}

/// Posts the run again after the commit of the event.
pub(super) fn restart_answered(
    driver: &mut Driver<'_>,
    mut restart: Box<FinishStage>,
    answer: Result<Answer, StoreError>,
) {
    match restart.commit.answered(driver, answer) {
        None => driver.task.stage = Stage::Restart(restart),
        Some(Ok(Appended::Written { .. })) => {
            let (id, append) = (driver.task.run.id, restart.commit.machine.append());
            driver.task.run.last_sequence = append.to;
            driver.net.db.check_published(id, restart.frames.last());
            if let Some(resumption) = &mut driver.task.resumption {
                let lines = append.lines.lines().map(str::to_owned);
                resumption.lines.extend(lines);
                resumption.start = Some(valid_texts(&resumption.lines).len());
            }
            let last_sequence = driver.task.run.last_sequence;
            let lost = LostConnection::after(None, last_sequence, driver.now());
            driver.task.lost = Some(lost);
            driver.claim(driver.task.run.attempt + 1);
        }
        Some(Ok(Appended::Lost | Appended::Overtaken)) => {}
        Some(Err(error)) => driver.stop_driving(&error),
    }
}

pub(super) fn is_resume_over(driver: &Driver<'_>) -> bool {
    let until = driver.task.lost.map(|lost| lost.at + millis(RESUME_WITHIN));
    driver.task.resumption.is_some() && until.is_some_and(|until| driver.now() >= until)
}

/// True when the gateway stops while it attaches.
pub(super) fn hands_over(driver: &Driver<'_>) -> bool {
    driver.task.resumption.is_some() && driver.gateway.is_stopping
}
