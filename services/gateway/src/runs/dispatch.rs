//! Getting a run to its runner: context, token, intent row, POST (runs §1, step 4).

use std::sync::Arc;
use std::time::Duration;

use domain::authorization::AuthorizationSnapshot;
use domain::context::{ContextParts, build_context, context_json};
use domain::retry::{AttemptFailure, Decision, after_failure};
use domain::run::{Failure, FailureCode, Run};
use http::StatusCode;
use protocol::JsonObject;
use protocol::admin::{AgentSpec, DeltaMode};
use protocol::context::AgentRunState;
use protocol::event::EventEnvelope;
use protocol::id::{RunId, WorkspaceId};
use protocol::resources::StateScope;
use protocol::run::RunStatus;
use serde_json::json;
use serde_json::value::RawValue;
use store::{Dispatch, Dispatched, StateAccess, StoreError};

use crate::cursor::history_cursor;
use crate::outbound::runner::{Endpoint, StartError, Started};
use crate::runs::Inner;
use crate::runs::discovery::open_endpoint;
use crate::runs::grant::{Grant, read_snapshot};
use crate::runs::live::LiveRun;
use crate::runs::token::TokenSubject;

/// How much state of one scope a context carries: the rest is read through the host API.
const STATE_KEYS: u64 = 100;
const STATE_BYTES: usize = 256 * 1024;

/// A run and all that its dispatch needs.
pub(super) struct Prepared {
    pub(super) run: Run,
    pub(super) snapshot: Arc<AuthorizationSnapshot>,
    pub(super) spec: AgentSpec,
    pub(super) event: EventEnvelope,
    pub(super) endpoint: Endpoint,
    pub(super) delta_mode: DeltaMode,
    pub(super) interruptible: bool,
    context: String,
}

/// What came of a dispatch.
pub(super) enum Outcome {
    /// The runner answers: the run as it is now, and its results.
    Started(Box<Run>, Started),
    /// The run ends without the runner: by this failure.
    Failed(Box<Run>, Failure),
    /// The run is not ours, or has ended.
    Lost,
}

/// Why a run cannot be prepared.
#[derive(Debug, thiserror::Error)]
pub(super) enum PrepareError {
    #[error("the run cannot be prepared: {0}")]
    Broken(&'static str),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Reads a created run again and builds its context.
pub(super) async fn prepare(
    inner: &Inner,
    workspace: &WorkspaceId,
    id: RunId,
) -> Result<Option<Prepared>, PrepareError> {
    let Some(run) = inner.store.find_run(workspace, id).await? else {
        return Ok(None);
    };
    if run.status != RunStatus::Created {
        return Ok(None);
    }
    let broken = PrepareError::Broken;
    let inputs = inner
        .store
        .find_run_inputs(&run)
        .await?
        .ok_or(broken("its event is gone"))?;
    let spec: AgentSpec =
        serde_json::from_str(&inputs.agent_spec).map_err(|_| broken("its agent is unreadable"))?;
    let event: EventEnvelope =
        serde_json::from_str(&inputs.envelope).map_err(|_| broken("its event is unreadable"))?;
    let snapshot =
        read_snapshot(&run.snapshot).map_err(|_| broken("its snapshot is unreadable"))?;
    let record = inner
        .store
        .find_endpoint(workspace, run.endpoint_id)
        .await?;
    let record = record.ok_or(broken("its endpoint is gone"))?;
    let endpoint = open_endpoint(&inner.master_key, &record)
        .map_err(|_| broken("its endpoint cannot be opened with this master key"))?;
    let runner = inner.store.find_runner(workspace, &run.runner_id).await?;
    let latest = (inputs.transcript_before > 0).then_some(inputs.transcript_before);
    let context = build_context(ContextParts {
        snapshot_sha256: &run.snapshot_sha256,
        event: &event,
        event_seq: inputs.event_seq,
        transcript_before: inputs.transcript_before,
        latest_cursor: latest
            .zip(snapshot.conversation.as_ref())
            .map(|(seq, conversation)| {
                history_cursor(&inner.cursors, workspace, conversation, seq)
            }),
        state: read_state(inner, &snapshot).await?,
        config: spec.config.clone(),
        deadline_at: run.deadline_at,
        trace_id: run.id.0.simple().to_string(),
        limits: told_limits(inner),
        snapshot: &snapshot,
    });
    let manifest = runner.and_then(|runner| {
        serde_json::from_str::<protocol::manifest::AgentRunnerManifest>(&runner.manifest).ok()
    });
    Ok(Some(Prepared {
        context: context_json(&context),
        snapshot: Arc::new(snapshot),
        spec,
        event,
        endpoint,
        delta_mode: record.delta_mode,
        interruptible: manifest.is_some_and(|manifest| manifest.capabilities.interrupt),
        run,
    }))
}

async fn read_state(
    inner: &Inner,
    snapshot: &AuthorizationSnapshot,
) -> Result<AgentRunState, StoreError> {
    let mut state = AgentRunState::default();
    for (&scope, identity) in &snapshot.state {
        let access = StateAccess {
            scope,
            identity: identity.clone(),
        };
        let entries = inner.store.list_state(&access, "", STATE_KEYS).await?;
        let map = match scope {
            StateScope::Conversation => &mut state.conversation,
            StateScope::Actor => &mut state.actor,
            StateScope::Subject => &mut state.subject,
            StateScope::Runner => &mut state.runner,
            StateScope::Binding => &mut state.binding,
        };
        let mut room = STATE_BYTES;
        for entry in entries {
            let Some(left) = room.checked_sub(entry.value.len()) else {
                continue;
            };
            room = left;
            if let Ok(value) = serde_json::from_str(&entry.value) {
                map.insert(entry.key, value);
            }
        }
    }
    Ok(state)
}

fn told_limits(inner: &Inner) -> JsonObject {
    let limits = &inner.limits;
    let told = json!({
        "line_bytes": limits.line_bytes,
        "event_bytes": limits.results.event_bytes,
        "run_bytes": limits.results.run_bytes,
        "run_events": limits.results.run_events,
        "state_value_bytes": limits.results.state_value_bytes,
        "first_byte_seconds": limits.first_byte.as_secs_f64(),
        "silence_seconds": limits.silence.as_secs_f64(),
    });
    told.as_object().cloned().unwrap_or_default()
}

/// Dispatches a prepared run: each attempt has its intent row before its POST.
pub(super) async fn dispatch(
    inner: &Inner,
    live: &LiveRun,
    prepared: &Prepared,
) -> Result<Outcome, StoreError> {
    let mut run = prepared.run.clone();
    let mut attempt = 0;
    loop {
        attempt += 1;
        match claim(inner, &run, attempt, &prepared.context).await? {
            Dispatched::Owned(owned) => run = *owned,
            Dispatched::Lost => return Ok(Outcome::Lost),
        }
        let grant = Arc::new(Grant {
            run: run.clone(),
            snapshot: Arc::clone(&prepared.snapshot),
            attempt,
        });
        live.set_grant(Arc::clone(&grant));
        if let Some(at) = run.cancel_requested_at {
            live.request_cancel(at);
        }
        let Some(posted) = post(inner, live, prepared, &grant).await else {
            return Ok(Outcome::Failed(
                Box::new(run.clone()),
                interruption(inner, live),
            ));
        };
        let error = match posted {
            Ok(started) => {
                inner
                    .store
                    .note_attempt(run.id, attempt, "started", Some(200))
                    .await?;
                return Ok(Outcome::Started(Box::new(run), started));
            }
            Err(error) => error,
        };
        let (failure, status) = describe(&error);
        inner
            .store
            .note_attempt(run.id, attempt, failure.code.as_str(), status)
            .await?;
        let left = time_left(inner, &run);
        let jitter = f64::from(run.id.0.as_bytes()[15]) / 255.0;
        let decision = after_failure(
            attempt,
            prepared.spec.retry.max,
            class_of(&error),
            left,
            jitter,
        );
        let Decision::RetryAfter(wait) = decision else {
            return Ok(Outcome::Failed(Box::new(run), failure));
        };
        tracing::warn!(run.id = %run.id, attempt, "runner did not take run {}, trying again", run.id);
        tokio::select! {
            () = interrupted(inner, live, &run) => {
                return Ok(Outcome::Failed(Box::new(run), interruption(inner, live)));
            }
            () = tokio::time::sleep(wait) => {}
        }
    }
}

async fn claim(
    inner: &Inner,
    run: &Run,
    attempt: u32,
    context: &str,
) -> Result<Dispatched, StoreError> {
    let now = inner.clock.now_ms();
    inner
        .store
        .write(Dispatch {
            run_id: run.id,
            epoch: run.lease_epoch,
            from: run.status,
            attempt,
            owner: inner.owner.clone(),
            lease_until: now + millis(inner.limits.lease),
            context: context.to_owned(),
            at: now,
        })
        .await
}

/// One POST. `None`: the run was interrupted before an answer came.
async fn post(
    inner: &Inner,
    live: &LiveRun,
    prepared: &Prepared,
    grant: &Grant,
) -> Option<Result<Started, StartError>> {
    let run = &grant.run;
    if live.cancel.is_cancelled() {
        return None;
    }
    let body = match request_body(inner, prepared, grant) {
        Ok(body) => body,
        Err(message) => {
            tracing::error!(run.id = %run.id, "run {} has no token: {message}", run.id);
            return None;
        }
    };
    let start = inner
        .client
        .start_run(&prepared.endpoint, run.id, grant.attempt, body);
    tokio::select! {
        () = interrupted(inner, live, run) => {
            if live.cancel.is_cancelled() {
                tell_runner(inner, prepared, run).await;
            }
            None
        }
        posted = tokio::time::timeout(inner.limits.first_byte, start) => {
            Some(posted.unwrap_or(Err(StartError::Silent)))
        }
    }
}

fn request_body(inner: &Inner, prepared: &Prepared, grant: &Grant) -> Result<String, &'static str> {
    let run = &grant.run;
    #[derive(serde::Serialize)]
    struct Request<'a> {
        runner_id: &'a protocol::id::RunnerId,
        runner_name: &'a str,
        context: &'a RawValue,
        host: protocol::request::HostAccess,
    }
    let subject = TokenSubject::of(grant);
    let minted = inner
        .tokens
        .mint(&subject, inner.clock.now_seconds())
        .map_err(|_| "the signing key is unusable")?;
    let request = Request {
        runner_id: &run.runner_id,
        runner_name: run.runner_id.runner_name(),
        context: serde_json::from_str(&prepared.context)
            .map_err(|_| "the context is unreadable")?,
        host: protocol::request::HostAccess {
            base_url: inner.tokens.audience().to_owned(),
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
        Failure::new(FailureCode::Cancelled, "the run was cancelled")
    } else if inner.closing.is_cancelled() {
        Failure::new(
            FailureCode::HostShutdown,
            "the gateway was stopped; post the event again",
        )
    } else {
        Failure::new(FailureCode::DeadlineExceeded, "the run passed its deadline")
    }
}

/// Sends the cancel notice to a runner that can be interrupted. Best effort, within the grace.
pub(super) async fn tell_runner(inner: &Inner, prepared: &Prepared, run: &Run) {
    if !prepared.interruptible {
        return;
    }
    let patience = inner.limits.cancel_grace.min(Duration::from_secs(5));
    let attempt = run.attempt.max(1);
    if let Err(error) = inner
        .client
        .cancel_run(&prepared.endpoint, run.id, attempt, patience)
        .await
    {
        tracing::info!(run.id = %run.id, error = &error as &dyn std::error::Error, "runner was not told of the cancel of run {}", run.id);
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
        StartError::Refused {
            status: StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE,
            retry_after: Some(wait),
        } => AttemptFailure::AskedToWait(*wait),
        _ => AttemptFailure::Uncertain,
    }
}

fn describe(error: &StartError) -> (Failure, Option<u16>) {
    let (code, status) = match error {
        StartError::Unreachable(_) => (FailureCode::RunnerUnreachable, None),
        StartError::Broken(_) => (FailureCode::RunnerStreamTruncated, None),
        StartError::Silent => (FailureCode::RunnerFirstByteTimeout, None),
        StartError::Refused { status, .. } => (FailureCode::RunnerHttpError, Some(status.as_u16())),
        StartError::BadContentType(_) => (FailureCode::RunnerBadContentType, Some(200)),
    };
    let failure = Failure::new(code, error.to_string());
    let failure = match status.filter(|_| code == FailureCode::RunnerHttpError) {
        Some(status) => failure.with_details(json!({"status": status})),
        None => failure,
    };
    (failure, status)
}
