//! Dispatch of a run to its runner: lease, token, intent row, POST.

pub(crate) mod failure;
pub(crate) mod resuming;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::normalize::Rejection;
use domain::retry::{RetryDecision, after_failure};
use domain::run::{Failure, Run};
use futures_util::FutureExt as _;
use protocol::id::{EndpointId, RunId, RunnerId};
use protocol::request::{HostAccess, ResumeRequest};
use serde_json::value::RawValue;
use store::{
    CheckSoon, Dispatch, DispatchPurpose, Dispatched, STARTED, StartAsyncRun, StoreError, failpoint,
};
use tokio::time::Instant;

use crate::bus::Notification;
use crate::deps::RunDeps;
use crate::grant::Grant;
use crate::inputs::PreparedDispatch;
use crate::interrupts::Interrupts;
use crate::live::LiveRun;
use failure::{class_of, describe, log_retry, rejection_of};
use runner_client::{Answer, StartError};
use telemetry::metrics;

/// Outcome of a dispatch.
pub(super) enum DispatchOutcome {
    /// The runner has answered: the run with its rights, and the source of its results.
    Started(Arc<Grant>, Answer),
    /// The run ends with this failure. The rejection holds the response of its runner.
    Failed(Box<Run>, Failure, Option<Rejection>),
    /// The connection to a resumable runner broke before it answered.
    Disconnected(Box<Run>),
    /// Another process owns the run, it has ended, or a pause holds it.
    Lost,
    /// The gateway stops, and another one can resume the run.
    Released(Box<Run>),
}

/// A call that results answer.
#[derive(Clone, Copy)]
enum RunnerCall {
    Run,
    Resume {
        /// Number of the last stored result; 0 for none.
        after: u64,
        /// End of the time in which the runner can be attached to.
        until: Instant,
    },
}

/// Posts prepared runs to their runners.
pub(super) struct Dispatcher {
    pub(super) deps: Arc<RunDeps>,
    pub(super) interrupts: Interrupts,
}

impl Dispatcher {
    /// Dispatches a prepared run. Each attempt writes its intent row before its POST, so that recovery knows of the
    /// runner.
    pub(super) async fn dispatch(
        &self,
        live: &LiveRun,
        mut run: Box<Run>,
        prepared: &PreparedDispatch,
    ) -> Result<DispatchOutcome, StoreError> {
        let mut lease_requested_at = prepared.lease_requested_at;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let owned = match lease_requested_at.take() {
                // The commit may have been slow as well.
                Some(requested_at) => self
                    .held_since(&run, requested_at)
                    .await?
                    .map(|held_until| (run, held_until)),
                None => self.own(&run, attempt, prepared).await?,
            };
            let Some((owned, held_until)) = owned else {
                return Ok(DispatchOutcome::Lost);
            };
            run = owned;
            if attempt == 1 {
                metrics::run_started();
            }
            failpoint::pass("post.after_intent").await?;
            let Some(grant) = begin_attempt(live, &run, prepared, attempt, held_until) else {
                return Ok(DispatchOutcome::Lost);
            };
            let posted = tokio::select! { biased;
                () = live.lost.cancelled() => return Ok(DispatchOutcome::Lost),
                posted = self.post(live, prepared, &grant, RunnerCall::Run) => posted,
            };
            let Some(posted) = posted else {
                let failure = self.interrupts.interruption(live);
                return Ok(DispatchOutcome::Failed(run, failure, None));
            };
            failpoint::pass("post.after_send").await?;
            let error = match posted {
                Ok(answer) => return self.accept(live, &run, grant, answer, 0).await,
                Err(error) => error,
            };
            let failure = self.record_failure(run.id, attempt, &error).await?;
            let is_broken = matches!(error, StartError::Broken(_));
            if is_broken && prepared.resume_window.is_some() {
                return Ok(DispatchOutcome::Disconnected(run));
            }
            let left = self.deps.time_until(run.deadline_at);
            let jitter = f64::from(run.id.0.as_bytes()[15]) / 255.0;
            let decision =
                after_failure(attempt, prepared.retry.max, class_of(&error), left, jitter);
            let RetryDecision::RetryAfter(wait) = decision else {
                let failure = self.unless_cancelled(live, &run, &error, failure).await;
                return Ok(DispatchOutcome::Failed(run, failure, rejection_of(&error)));
            };
            log_retry(&self.deps.store, &run, attempt, &error, wait).await;
            tokio::select! {
                biased;
                () = live.lost.cancelled() => return Ok(DispatchOutcome::Lost),
                () = self.interrupts.interrupted(live, &run) => {
                    let failure = self.interrupts.interruption(live);
                    return Ok(DispatchOutcome::Failed(run, failure, None));
                }
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Failure of the run, or its cancellation.
    async fn unless_cancelled(
        &self,
        live: &LiveRun,
        run: &Run,
        error: &StartError,
        failure: Failure,
    ) -> Failure {
        let has_gone = matches!(error, StartError::Broken(_));
        // The runner may have received a cancel from another replica, and hung up because of it.
        if has_gone && self.interrupts.was_cancelled_elsewhere(live, run).await {
            return Failure::cancelled();
        }
        failure
    }

    /// Records an attempt that the runner has answered, whose results follow `streamed_through`.
    async fn accept(
        &self,
        live: &LiveRun,
        run: &Run,
        grant: Arc<Grant>,
        answer: Answer,
        streamed_through: u64,
    ) -> Result<DispatchOutcome, StoreError> {
        let (outcome, status) = outcome_of(&answer);
        metrics::dispatch_attempted(outcome);
        self.record(run.id, grant.attempt, outcome, Some(status))
            .await?;
        let is_deferred = matches!(answer, Answer::Deferred(_));
        if is_deferred && !self.defer(live, run, streamed_through).await? {
            return Ok(DispatchOutcome::Lost);
        }
        Ok(DispatchOutcome::Started(grant, answer))
    }

    /// Records a failed attempt. Returns the failure with which the run ends if no other attempt follows.
    async fn record_failure(
        &self,
        run: RunId,
        attempt: u32,
        error: &StartError,
    ) -> Result<Failure, StoreError> {
        let (failure, status) = describe(error);
        let outcome = failure.code.as_str();
        metrics::dispatch_attempted(outcome);
        self.record(run, attempt, outcome, status).await?;
        Ok(failure)
    }

    /// Records the outcome of an attempt.
    async fn record(
        &self,
        run: RunId,
        attempt: u32,
        outcome: &str,
        status: Option<u16>,
    ) -> Result<(), StoreError> {
        let runs = self.deps.store.runs();
        runs.record_attempt(run, attempt, outcome, status).await
    }

    /// Takes the run for this attempt, and returns the end of its lease. `None`: another process owns the run,
    /// or it has ended.
    async fn own(
        &self,
        run: &Run,
        attempt: u32,
        prepared: &PreparedDispatch,
    ) -> Result<Option<(Box<Run>, Instant)>, StoreError> {
        // Taken before the database reads its clock, so that the lease ends here first.
        let requested_at = Instant::now();
        failpoint::pass("post.before_intent").await?;
        let Dispatched::Owned(owned) = self.claim(run, attempt, prepared).await? else {
            return Ok(None);
        };
        self.deps.notifier.notify_changed(run.id);
        let held_until = self.held_since(&owned, requested_at).await?;
        Ok(held_until.map(|held_until| (owned, held_until)))
    }

    async fn claim(
        &self,
        run: &Run,
        attempt: u32,
        prepared: &PreparedDispatch,
    ) -> Result<Dispatched, StoreError> {
        let dispatch = Arc::new(Dispatch {
            run: run.clone(),
            attempt,
            owner: self.deps.owner.clone(),
            lease: self.deps.limits.lease,
            context: Arc::clone(&prepared.context),
            shared: prepared.shared.clone(),
            deadline_at: run.deadline_at,
            purpose: DispatchPurpose::Call,
            at: self.deps.clock.now_ms(),
        });
        // A claim whose answer was lost must be found again: no other process would post the run.
        self.deps
            .ledger
            .retry_within_lease(run.id, || self.deps.store.write(Arc::clone(&dispatch)))
            .await
    }

    /// End of the lease of a claim that was requested at `requested_at`. `None`: it has lapsed.
    async fn held_since(
        &self,
        run: &Run,
        requested_at: Instant,
    ) -> Result<Option<Instant>, StoreError> {
        let lease = self.deps.limits.lease;
        if is_fresh(requested_at, Instant::now(), lease) {
            return Ok(Some(requested_at + lease));
        }
        let renew = || async {
            let again_at = Instant::now();
            let ids = vec![run.id];
            let renewed = self
                .deps
                .store
                .leases()
                .renew_leases(&self.deps.owner, ids, lease)
                .await?;
            Ok(if renewed.held.contains_key(&run.id) {
                Some(again_at + lease)
            } else {
                // Not renewed, and still held.
                let is_busy = renewed.busy.contains(&run.id);
                let until = requested_at + lease;
                (is_busy && again_at + lease / 3 < until).then_some(until)
            })
        };
        self.deps.ledger.retry_within_lease(run.id, renew).await
    }

    /// Opens the run for appended results after `streamed_through`. False: the run has ended or another owner.
    async fn defer(
        &self,
        live: &LiveRun,
        run: &Run,
        streamed_through: u64,
    ) -> Result<bool, StoreError> {
        live.appends.store(true, Ordering::Release);
        let defer = Arc::new(StartAsyncRun {
            run_id: run.id,
            attempt: run.attempt,
            fencing_token: run.fencing_token,
            streamed_through,
            lease: self.deps.limits.append_lease,
        });
        // The runner has started and gets no second POST, so the state must be stored.
        let deferred = self
            .deps
            .ledger
            .retry_within_lease(run.id, || self.deps.store.write(Arc::clone(&defer)))
            .await?;
        // Appends through other replicas may have overtaken the 202. The relay wakes those of this process.
        self.deps.notifier.notify(Notification::Advanced(run.id));
        Ok(deferred)
    }

    /// One POST. `None`: the run was interrupted before an answer came.
    async fn post(
        &self,
        live: &LiveRun,
        prepared: &PreparedDispatch,
        grant: &Grant,
        call: RunnerCall,
    ) -> Option<Result<Answer, StartError>> {
        let run = &grant.run;
        // A cancelled run must not reach its runner.
        if live.cancel.is_cancelled() {
            return None;
        }
        // Before the token is minted: an open circuit costs no signature.
        let permit = match self.deps.breakers.enter(run.endpoint_id) {
            Ok(permit) => permit,
            Err(wait) => return Some(Err(StartError::CircuitOpen { wait })),
        };
        let body = match self.request_body(prepared, grant, call).await {
            Ok(body) => body,
            Err(message) => return Some(Err(StartError::Unprepared(message))),
        };
        let trace = self.deps.spans.header_of(run);
        let Some(endpoint) = &prepared.endpoint else {
            return Some(Err(StartError::Unprepared("its endpoint is gone")));
        };
        let sent = Arc::new(AtomicBool::new(false));
        let attempt = grant.attempt;
        let (call, patience) = match call {
            RunnerCall::Run => (
                endpoint.run_call(run.id, attempt, trace, body),
                self.deps.limits.first_byte,
            ),
            RunnerCall::Resume { until, .. } => (
                endpoint.resume_call(run.id, attempt, trace, body),
                (self.deps.limits.first_byte).min(until.saturating_duration_since(Instant::now())),
            ),
        };
        let start = self
            .deps
            .client
            .start_run(endpoint, call, Arc::clone(&sent));
        let posting = tokio::time::timeout(patience, start)
            // The timeout ends with the response head; results may take hours.
            .map(|posted| posted.unwrap_or(Err(StartError::Silent)));
        let mut posting = pin!(posting);
        tokio::select! {
            biased;
            () = self.interrupts.interrupted(live, run) => {}
            posted = &mut posting => {
                // Only the first failure: the next ones would queue the same check.
                if permit.note(&posted) {
                    self.check_endpoint(run.endpoint_id).await;
                }
                return Some(posted);
            }
        }
        if !live.cancel.is_cancelled() || !sent.load(Ordering::Acquire) {
            return None;
        }
        // The runner may already work, so it gets its grace. If it hangs up now, that is no failure of its
        // endpoint.
        tokio::select! {
            () = self.interrupts.grace(live, prepared, run) => None,
            posted = &mut posting => {
                let posted = Ok(posted.ok()?);
                permit.note(&posted);
                Some(posted)
            }
        }
    }

    /// Queues a discovery of the endpoint: its health in the lists is up to five minutes old.
    async fn check_endpoint(&self, endpoint_id: EndpointId) {
        let at = self.deps.clock.now_ms();
        let queued = self
            .deps
            .store
            .write_later(CheckSoon { endpoint_id, at })
            .await;
        if let Err(error) = queued {
            let error = &error as &dyn std::error::Error;
            tracing::debug!(error, "endpoint {endpoint_id} is checked on schedule");
        }
    }

    async fn request_body(
        &self,
        prepared: &PreparedDispatch,
        grant: &Grant,
        call: RunnerCall,
    ) -> Result<String, &'static str> {
        let run = &grant.run;
        let max_wait_ms = self.deps.max_wait_of(&run.workspace).await;
        let subject = grant.token_subject(max_wait_ms);
        let minted = self
            .deps
            .keys
            .tokens
            .mint(&subject, self.deps.clock.now_seconds())
            .map_err(|_| "the signing key is unusable")?;
        let host = HostAccess {
            base_url: self.deps.keys.tokens.audience().to_owned(),
            token: minted.token,
            token_expires_at: minted.expires_at,
        };
        let body = match call {
            RunnerCall::Run => serde_json::to_string(&RunnerRequest {
                runner_id: &run.runner_id,
                runner_name: run.runner_id.runner_name(),
                context: &prepared.context,
                host,
            }),
            RunnerCall::Resume { after, .. } => serde_json::to_string(&ResumeRequest {
                run_id: run.id.to_string(),
                runner_id: run.runner_id.clone(),
                attempt: grant.attempt,
                after: (after > 0).then_some(after),
                host,
            }),
        };
        body.map_err(|_| "the request cannot be written")
    }
}

/// Gives a live run the rights of its next attempt. `None`: its lease has lapsed, so another process may have taken it.
fn begin_attempt(
    live: &LiveRun,
    run: &Run,
    prepared: &PreparedDispatch,
    attempt: u32,
    held_until: Instant,
) -> Option<Arc<Grant>> {
    let snapshot = Arc::clone(&prepared.snapshot);
    let grant = Arc::new(Grant::new(run.clone(), snapshot, attempt));
    live.set_grant(Arc::clone(&grant));
    live.is_resumable
        .store(prepared.resume_window.is_some(), Ordering::Release);
    live.hold_until(held_until);
    if let Some(at) = run.cancel_requested_at {
        live.request_cancel(at);
    }
    live.is_held(Instant::now()).then_some(grant)
}

/// True when the lease of a claim needs no renewal before the POST.
pub(crate) fn is_fresh(requested_at: Instant, now: Instant, lease: Duration) -> bool {
    // Below a third, the periodic renewal comes in time.
    now < requested_at + lease / 3
}

/// Outcome and status of an answered attempt.
fn outcome_of(answer: &Answer) -> (&'static str, u16) {
    match answer {
        Answer::Started(_) => (STARTED, 200),
        Answer::Deferred(_) => ("deferred", 202),
    }
}

/// An `AgentRunRequest` around a written context.
#[derive(serde::Serialize)]
struct RunnerRequest<'a> {
    runner_id: &'a RunnerId,
    runner_name: &'a str,
    context: &'a RawValue,
    host: HostAccess,
}
