//! Resume of a run whose connection to its runner was lost, and new start of a run that its runner has lost: a new
//! attempt, a new token, and the POST, repeated until it succeeds.

use std::time::Duration;

use domain::run::{Failure, FailureCode, Run};
use serde_json::value::RawValue;
use store::{StoreError, failpoint};
use tokio::time::Instant;

use super::failure::{ResumeDecision, after_failed_restart, after_failed_resume, rejection_of};
use super::{DispatchOutcome, Dispatcher, RunnerCall, begin_attempt};
use crate::inputs::PreparedDispatch;
use crate::live::LiveRun;
use runner_client::StartError;

/// Pause before a repeated resume.
pub(crate) const PAUSE: Duration = Duration::from_secs(1);

/// Consecutive refused connections that prove the loss of the runner's process, and of its runs.
const REFUSALS: u32 = 5;

/// Aim of the calls to a resumable runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reattach {
    /// Attach after the result with this number; 0 for none.
    Resume(u64),
    /// Start the run again, at a runner that does not have it.
    Restart,
}

impl Reattach {
    fn call(self, until: Instant) -> RunnerCall {
        match self {
            Self::Resume(after) => RunnerCall::Resume { after, until },
            Self::Restart => RunnerCall::Run,
        }
    }

    /// Number of the last stored result.
    fn after(self) -> u64 {
        match self {
            Self::Resume(after) => after,
            Self::Restart => 0,
        }
    }

    fn decide(self, error: &StartError) -> ResumeDecision {
        match self {
            Self::Resume(_) => after_failed_resume(error),
            Self::Restart => after_failed_restart(error),
        }
    }

    /// Failure of the run after the time in which the runner could be reached.
    fn unreached(self) -> Failure {
        match self {
            Self::Resume(_) => runner_unattached(),
            Self::Restart => runner_not_restarted(),
        }
    }
}

/// A lost connection to a resumable runner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LostConnection {
    /// The runner works on for its `resume_within_seconds` from here on.
    pub(crate) at: Instant,
    /// Last sequence of the ledger at that time.
    pub(crate) last_sequence: u64,
    /// The first resume waits as a repeated one.
    pub(crate) is_repeated: bool,
}

impl LostConnection {
    /// The loss of a connection after `earlier`. One that has brought no result continues the earlier loss, so that a
    /// runner without progress ends its run.
    pub(crate) fn after(earlier: Option<Self>, last_sequence: u64, now: Instant) -> Self {
        let fresh = Self {
            at: now,
            last_sequence,
            is_repeated: false,
        };
        match earlier {
            Some(earlier) if earlier.last_sequence == last_sequence => Self {
                is_repeated: true,
                ..earlier
            },
            _ => fresh,
        }
    }
}

impl Dispatcher {
    /// Attaches to the runner of a run that this process owns, or starts the run again. It repeats the call until
    /// the runner's time is over. Each try is an attempt of its own: runners refuse a repeated request.
    pub(crate) async fn resume(
        &self,
        live: &LiveRun,
        mut run: Box<Run>,
        prepared: &PreparedDispatch,
        aim: Reattach,
        lost: LostConnection,
    ) -> Result<DispatchOutcome, StoreError> {
        let until = lost.at + prepared.resume_window.unwrap_or_default();
        let mut pauses = lost.is_repeated;
        let mut last_error = None;
        let mut refusals = 0;
        // Only the first intent stores the context, which may be megabytes.
        let without_context = PreparedDispatch {
            context: RawValue::NULL.to_owned().into(),
            ..prepared.clone()
        };
        let mut intent = prepared;
        loop {
            if std::mem::replace(&mut pauses, true) {
                tokio::select! {
                    biased;
                    () = live.lost.cancelled() => return Ok(DispatchOutcome::Lost),
                    () = self.interrupts.interrupted(live, &run) => {
                        let failure = self.interrupts.interruption(live);
                        return Ok(DispatchOutcome::Failed(run, failure, None));
                    }
                    () = self.deps.lifecycle.stopping.cancelled() => {
                        return Ok(DispatchOutcome::Released(run));
                    }
                    () = tokio::time::sleep(PAUSE) => {}
                }
            }
            if Instant::now() >= until {
                let rejection = last_error.as_ref().and_then(rejection_of);
                return Ok(DispatchOutcome::Failed(run, aim.unreached(), rejection));
            }
            let attempt = run.attempt + 1;
            let Some((owned, held_until)) = self.own(&run, attempt, intent).await? else {
                return Ok(DispatchOutcome::Lost);
            };
            (run, intent) = (owned, &without_context);
            failpoint::pass("post.after_intent").await?;
            let Some(grant) = begin_attempt(live, &run, prepared, attempt, held_until) else {
                return Ok(DispatchOutcome::Lost);
            };
            let posted = tokio::select! {
                biased;
                () = live.lost.cancelled() => return Ok(DispatchOutcome::Lost),
                posted = self.post(live, prepared, &grant, aim.call(until)) => posted,
                () = self.deps.lifecycle.stopping.cancelled() => {
                    return Ok(DispatchOutcome::Released(run));
                }
            };
            let Some(posted) = posted else {
                let failure = self.interrupts.interruption(live);
                return Ok(DispatchOutcome::Failed(run, failure, None));
            };
            failpoint::pass("post.after_send").await?;
            let error = match posted {
                Ok(answer) => return self.accept(live, &run, grant, answer, aim.after()).await,
                Err(error) => error,
            };
            let failure = self.record_failure(run.id, attempt, &error).await?;
            // A proxy may answer for the runner between two refusals; an open circuit sends nothing.
            refusals = match &error {
                StartError::Unreachable(error) if error.is_refused() => refusals + 1,
                StartError::CircuitOpen { .. } => refusals,
                _ => 0,
            };
            let failure = match aim.decide(&error) {
                ResumeDecision::Repeat if refusals >= REFUSALS && aim != Reattach::Restart => {
                    runner_without_run()
                }
                ResumeDecision::Repeat => {
                    tracing::info!(
                        run.id = %run.id, runner.id = %run.runner_id, attempt,
                        error = &error as &dyn std::error::Error,
                        "cannot reach the runner of run {}, trying again in {} ms", run.id, PAUSE.as_millis()
                    );
                    last_error = Some(error);
                    continue;
                }
                ResumeDecision::Attach => return Ok(DispatchOutcome::Disconnected(run)),
                ResumeDecision::RunnerLost => runner_without_run(),
                ResumeDecision::Fail => failure,
            };
            return Ok(DispatchOutcome::Failed(run, failure, rejection_of(&error)));
        }
    }
}

/// Failure of a run after the time in which its runner could be attached to.
pub(crate) fn runner_unattached() -> Failure {
    let message = "the connection to the runner was lost, and no resume succeeded within resume_within_seconds";
    Failure::new(FailureCode::RunnerLost, message)
}

/// Failure of a run that no runner took again after it was lost.
fn runner_not_restarted() -> Failure {
    let message =
        "the runner has lost the run, and no new attempt reached it within resume_within_seconds";
    Failure::new(FailureCode::RunnerLost, message)
}

/// Failure of a run that its runner does not have.
pub(crate) fn runner_without_run() -> Failure {
    let message = "the runner does not have the run any more: its process was restarted, or it gave the run up";
    Failure::new(FailureCode::RunnerLost, message)
}
