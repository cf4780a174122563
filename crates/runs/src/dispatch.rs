//! Getting a run to its runner: context, token, intent row, POST (runs §1, step 4).

mod grace;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use domain::retry::{AttemptFailure, Decision, after_failure};
use domain::run::{Failure, FailureCode, Run};
use futures_util::FutureExt as _;
use http::StatusCode;
use protocol::id::RunnerId;
use protocol::request::HostAccess;
use serde_json::json;
use serde_json::value::RawValue;
use store::{Dispatch, Dispatched, STARTED, StartAsyncRun, StoreError, failpoint};
use tokio::time::Instant;

use crate::Inner;
use crate::grant::Grant;
use crate::live::LiveRun;
use crate::prepare::Prepared;
use crate::settle::surely;
use runner_client::{Answer, StartError};
use telemetry::metrics;

pub(super) use grace::{grace, was_cancelled_elsewhere};

/// A circuit that is open for longer is not waited for: each try costs commits, and would only be told the same.
const SHORT_BREAK: Duration = Duration::from_millis(500);

/// What came of a dispatch.
pub(super) enum Outcome {
    /// The runner answers: the run as it is now, what it may do, and where its results come from.
    Started(Arc<Grant>, Answer),
    /// The run ends without the runner: by this failure.
    Failed(Box<Run>, Failure),
    /// The run is not ours, or has ended.
    Lost,
}

/// Dispatches a prepared run: each attempt has its intent row before its POST.
pub(super) async fn dispatch(
    inner: &Inner,
    live: &LiveRun,
    mut run: Box<Run>,
    prepared: &Prepared,
) -> Result<Outcome, StoreError> {
    let mut begun = prepared.begun;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let owned = match begun.take() {
            // Its commit may have been long in coming, too.
            Some(asked_at) => held_since(inner, &run, asked_at)
                .await?
                .map(|held_until| (run, held_until)),
            None => own(inner, &run, attempt, prepared).await?,
        };
        let Some((owned, held_until)) = owned else {
            return Ok(Outcome::Lost);
        };
        run = owned;
        if attempt == 1 {
            metrics::run_started();
        }
        failpoint::pass("post.after_intent").await?;
        let grant = Arc::new(Grant {
            run: (*run).clone(),
            snapshot: Arc::clone(&prepared.snapshot),
            attempt,
        });
        live.set_grant(Arc::clone(&grant));
        live.hold_until(held_until);
        if let Some(at) = run.cancel_requested_at {
            live.request_cancel(at);
        }
        // Whoever took it over meanwhile has ended it, and what it ended must not begin.
        if !live.is_held(Instant::now()) {
            return Ok(Outcome::Lost);
        }
        let posted = tokio::select! { biased;
            () = live.lost.cancelled() => return Ok(Outcome::Lost),
            posted = post(inner, live, prepared, &grant) => posted,
        };
        let Some(posted) = posted else {
            return Ok(Outcome::Failed(run, interruption(inner, live)));
        };
        failpoint::pass("post.after_send").await?;
        let error = match posted {
            Ok(answer) => {
                let (outcome, status) = outcome_of(&answer);
                metrics::dispatch_attempted(outcome);
                inner
                    .store
                    .runs()
                    .record_attempt(run.id, attempt, outcome, Some(status))
                    .await?;
                let is_deferred = matches!(answer, Answer::Deferred(_));
                if is_deferred && !defer(inner, live, &run, attempt).await? {
                    return Ok(Outcome::Lost);
                }
                return Ok(Outcome::Started(grant, answer));
            }
            Err(error) => error,
        };
        let (failure, status) = describe(&error);
        metrics::dispatch_attempted(failure.code.as_str());
        inner
            .store
            .runs()
            .record_attempt(run.id, attempt, failure.code.as_str(), status)
            .await?;
        let left = time_left(inner, &run);
        let jitter = f64::from(run.id.0.as_bytes()[15]) / 255.0;
        let decision = after_failure(attempt, prepared.retries, class_of(&error), left, jitter);
        let Decision::RetryAfter(wait) = decision else {
            let failure = unless_cancelled(inner, live, &run, &error, failure).await;
            return Ok(Outcome::Failed(run, failure));
        };
        tracing::warn!(run.id = %run.id, attempt, "runner did not take run {}, trying again", run.id);
        tokio::select! {
            biased;
            () = live.lost.cancelled() => return Ok(Outcome::Lost),
            () = interrupted(inner, live, &run) => {
                return Ok(Outcome::Failed(run, interruption(inner, live)));
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

/// Why the run fails: a runner that hangs up before it answers may have heard of a cancel before we have.
async fn unless_cancelled(
    inner: &Inner,
    live: &LiveRun,
    run: &Run,
    error: &StartError,
    failure: Failure,
) -> Failure {
    let has_gone = matches!(error, StartError::Broken(_));
    if has_gone && was_cancelled_elsewhere(inner, live, run).await {
        return Failure::cancelled();
    }
    failure
}

/// The outcome of an attempt that was answered so, and the status.
fn outcome_of(answer: &Answer) -> (&'static str, u16) {
    match answer {
        Answer::Started(_) => (STARTED, 200),
        Answer::Deferred(_) => ("deferred", 202),
    }
}

/// Takes the run for this attempt, and says until when it is ours. `None`: it is somebody else's, or has ended.
async fn own(
    inner: &Inner,
    run: &Run,
    attempt: u32,
    prepared: &Prepared,
) -> Result<Option<(Box<Run>, Instant)>, StoreError> {
    // Before the database's clock is asked: ours ends first.
    let asked_at = Instant::now();
    failpoint::pass("post.before_intent").await?;
    let Dispatched::Owned(owned) = claim(inner, run, attempt, prepared).await? else {
        return Ok(None);
    };
    let held_until = held_since(inner, &owned, asked_at).await?;
    Ok(held_until.map(|held_until| (owned, held_until)))
}

async fn claim(
    inner: &Inner,
    run: &Run,
    attempt: u32,
    prepared: &Prepared,
) -> Result<Dispatched, StoreError> {
    let dispatch = Arc::new(Dispatch {
        run: run.clone(),
        attempt,
        owner: inner.owner.clone(),
        lease: inner.limits.lease,
        context: Arc::clone(&prepared.context),
        shared: prepared.shared.clone(),
        deadline_at: run.deadline_at,
        at: inner.clock.now_ms(),
    });
    // It may be done though its answer was lost: then nobody else would post it.
    surely(inner, run.id, || inner.store.write(Arc::clone(&dispatch))).await
}

/// Until when the lease of a claim is ours that was asked for at that moment. `None`: it is not any more. One that was
/// long in coming is renewed: a runner is called only where there is time to renew it again.
async fn held_since(
    inner: &Inner,
    run: &Run,
    asked_at: Instant,
) -> Result<Option<Instant>, StoreError> {
    let lease = inner.limits.lease;
    if asked_at.elapsed() < lease / 3 {
        return Ok(Some(asked_at + lease));
    }
    let renew = || async {
        let again_at = Instant::now();
        let ids = vec![run.id];
        let renewed = inner
            .store
            .leases()
            .renew_leases(&inner.owner, ids, lease)
            .await?;
        Ok(if renewed.held.contains_key(&run.id) {
            Some(again_at + lease)
        } else {
            // Not renewed, and held as before.
            let is_busy = renewed.busy.contains(&run.id);
            let until = asked_at + lease;
            (is_busy && again_at + lease / 3 < until).then_some(until)
        })
    };
    surely(inner, run.id, renew).await
}

/// Opens the run for results that are appended; false when it has ended.
async fn defer(inner: &Inner, live: &LiveRun, run: &Run, attempt: u32) -> Result<bool, StoreError> {
    live.appends.store(true, Ordering::Release);
    let defer = Arc::new(StartAsyncRun {
        run_id: run.id,
        attempt,
        lease: inner.limits.append_lease,
    });
    // Its runner has begun: nobody would ask it again.
    surely(inner, run.id, || inner.store.write(Arc::clone(&defer))).await
}

/// One POST. `None`: the run was interrupted before an answer came.
async fn post(
    inner: &Inner,
    live: &LiveRun,
    prepared: &Prepared,
    grant: &Grant,
) -> Option<Result<Answer, StartError>> {
    let run = &grant.run;
    if live.cancel.is_cancelled() {
        return None;
    }
    let permit = match inner.breakers.enter(run.endpoint_id) {
        Ok(permit) => permit,
        Err(wait) => return Some(Err(StartError::CircuitOpen { wait })),
    };
    let body = match request_body(inner, prepared, grant) {
        Ok(body) => body,
        Err(message) => return Some(Err(StartError::Unprepared(message))),
    };
    let trace = inner.spans.header_of(run);
    let Some(endpoint) = &prepared.endpoint else {
        return Some(Err(StartError::Unprepared("its endpoint is gone")));
    };
    let sent = Arc::new(AtomicBool::new(false));
    let of = (run.id, grant.attempt);
    let start = inner
        .client
        .start_run(endpoint, of, trace, body, Arc::clone(&sent));
    let posting = tokio::time::timeout(inner.limits.first_byte, start)
        .map(|posted| posted.unwrap_or(Err(StartError::Silent)));
    let mut posting = pin!(posting);
    tokio::select! {
        biased;
        () = interrupted(inner, live, run) => {}
        posted = &mut posting => {
            permit.note(&posted);
            return Some(posted);
        }
    }
    if !live.cancel.is_cancelled() || !sent.load(Ordering::Acquire) {
        return None;
    }
    // Its runner may be at work before it answers, and has its grace as any other. It may hang up, too: that says
    // nothing of its endpoint.
    tokio::select! {
        () = grace(inner, live, prepared, run) => None,
        posted = &mut posting => {
            let posted = Ok(posted.ok()?);
            permit.note(&posted);
            Some(posted)
        }
    }
}

/// An `AgentRunRequest` around a context that is written already.
#[derive(serde::Serialize)]
struct Request<'a> {
    runner_id: &'a RunnerId,
    runner_name: &'a str,
    context: &'a RawValue,
    host: HostAccess,
}

fn request_body(inner: &Inner, prepared: &Prepared, grant: &Grant) -> Result<String, &'static str> {
    let run = &grant.run;
    let subject = grant.token_subject();
    let minted = inner
        .keys
        .tokens
        .mint(&subject, inner.clock.now_seconds())
        .map_err(|_| "the signing key is unusable")?;
    let request = Request {
        runner_id: &run.runner_id,
        runner_name: run.runner_id.runner_name(),
        context: &prepared.context,
        host: HostAccess {
            base_url: inner.keys.tokens.audience().to_owned(),
            token: minted.token,
            token_expires_at: minted.expires_at,
        },
    };
    serde_json::to_string(&request).map_err(|_| "the request cannot be written")
}

/// Resolves when the run must end: cancelled, past its deadline, or the gateway is closing.
pub(super) async fn interrupted(inner: &Inner, live: &LiveRun, run: &Run) {
    tokio::select! {
        () = live.cancel.cancelled() => {}
        () = inner.closing.cancelled() => {}
        () = tokio::time::sleep(time_left(inner, run)) => {}
    }
}

/// Why [`interrupted`] resolved.
pub(super) fn interruption(inner: &Inner, live: &LiveRun) -> Failure {
    if live.cancel.is_cancelled() {
        Failure::cancelled()
    } else if inner.closing.is_cancelled() {
        Failure::new(
            FailureCode::HostShutdown,
            "the gateway was stopped; post the event again",
        )
    } else {
        Failure::new(FailureCode::DeadlineExceeded, "the run passed its deadline")
    }
}

/// The time until the run's deadline.
pub(super) fn time_left(inner: &Inner, run: &Run) -> Duration {
    let left = run.deadline_at - inner.clock.now_ms();
    Duration::from_millis(u64::try_from(left).unwrap_or(0))
}

pub(super) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn class_of(error: &StartError) -> AttemptFailure {
    match error {
        StartError::Unreachable(error) if error.is_connect() => AttemptFailure::NotConnected,
        StartError::CircuitOpen { wait } if *wait <= SHORT_BREAK => AttemptFailure::NotConnected,
        StartError::Refused {
            status: StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE,
            retry_after: Some(wait),
        } => AttemptFailure::AskedToWait(*wait),
        _ => AttemptFailure::Uncertain,
    }
}

/// Whether a runner that answers so may answer otherwise next time.
fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..)
}

fn describe(error: &StartError) -> (Failure, Option<u16>) {
    let (code, status) = match error {
        StartError::Unreachable(_) => (FailureCode::RunnerUnreachable, None),
        StartError::Broken(_) => (FailureCode::RunnerStreamTruncated, None),
        StartError::Silent => (FailureCode::RunnerFirstByteTimeout, None),
        StartError::CircuitOpen { .. } => (FailureCode::RunnerCircuitOpen, None),
        StartError::Unprepared(_) => (FailureCode::HostInternal, None),
        StartError::Refused { status, .. } => (FailureCode::RunnerHttpError, Some(status.as_u16())),
        StartError::BadContentType(_) => (FailureCode::RunnerBadContentType, Some(200)),
    };
    let failure = Failure::new(code, error.to_string());
    let failure = match status.filter(|_| code == FailureCode::RunnerHttpError) {
        Some(status) => Failure {
            retryable: is_passing(status),
            ..failure.with_details(json!({"status": status}))
        },
        None => failure,
    };
    (failure, status)
}
