//! Intake: from an event to a stored run, in one transaction. A refused event leaves no rows.

mod error;
mod hooked;
mod retry;
mod sender;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;

use domain::actor_token::{ActorToken, actor_name};
use domain::api_key::AgentReach;
use domain::canonical::canonical_json;
use domain::event::{completed, conversation_of};
use domain::trace::TraceParent;
use egress::limiter::Permit;
use protocol::context::RawEventRef;
use protocol::event::{EventAccepted, EventEnvelope};
use protocol::hook::HookMoment;
use protocol::id::{AgentId, ApiKeyId, RunId, WorkspaceId};
use protocol::run::RunStatus;
use store::{
    AnsweredBy, EventActor, EventKey, Ingest, IngestOutcome, Ingested, StoreError, failpoint,
    sha256_hex,
};
use uuid::Uuid;

use crate::actor_tokens::sealed;
use crate::artifacts::{Artifacts, Attached, BodyFiles, Uploads, may_have_files};
use crate::decide::{
    Decider, DecisionEffects, DecisionInput, ParentContext, PendingDecision, user_message,
};
use crate::deps::RunDeps;
use crate::executor::RunExecutor;
use crate::own_limits::{KeyStart, StartingKey};
use crate::unconfirmed::UnconfirmedDispatches;
use telemetry::metrics;

pub use crate::retry_origin::RetryPointError;
pub use error::IntakeError;
pub use retry::{RetriedRun, RetryError};
pub use sender::EventSender;

/// Time after the latest event of a client in which background work leaves the processor to others.
const CLIENT_ACTIVITY_MS: i64 = 1000;

/// An event that is stored now, or was stored before.
#[derive(Clone, Debug)]
pub struct AcceptedEvent {
    pub answer: EventAccepted,
    /// The same key and body came before; the answer is the first one.
    pub replayed: bool,
}

/// Identity of an event, and the agents that may get it.
pub(super) struct IntakeRequest {
    pub(super) event_id: String,
    pub(super) dedupe_key: String,
    pub(super) body_sha256: String,
    /// Span of the request, if traces are exported.
    pub(super) trace_parent: Option<TraceParent>,
    /// The only agent that may get the event; `None`: any.
    pub(super) only: Option<AgentId>,
    /// The agents that the sender reaches.
    pub(super) scope: AgentReach,
    /// The API key of the request; `None`: a run or a link.
    pub(super) posted_by: Option<ApiKeyId>,
    /// The question that the event answers.
    pub(super) answers: Option<AnsweredBy>,
    /// Parent of the child run that the event asks for.
    pub(super) parent: Option<ParentContext>,
    /// Start of the run by its key. The default: of no key.
    pub(super) start: KeyStart,
    /// Token of the parent's actor, for a child run. The event may have its own.
    pub(super) actor_token: Option<ActorToken>,
}

impl IntakeRequest {
    fn key<'a>(&'a self, workspace: &'a WorkspaceId, at: i64) -> EventKey<'a> {
        EventKey {
            workspace,
            event_id: &self.event_id,
            dedupe_key: &self.dedupe_key,
            body_sha256: &self.body_sha256,
            at,
        }
    }
}

/// Takes events in: rate limit, duplicates, files, decision, and one transaction.
pub struct Intake {
    pub(super) deps: Arc<RunDeps>,
    pub(super) artifacts: Artifacts,
    pub(super) decider: Arc<Decider>,
    pub(super) executor: Arc<RunExecutor>,
    pub(super) unconfirmed: Arc<UnconfirmedDispatches>,
    pub(super) activity: ClientActivity,
}

/// Time of the latest event that a client posted to this replica.
#[derive(Default)]
pub(super) struct ClientActivity {
    /// Epoch milliseconds; 0: none.
    latest: AtomicI64,
}

impl ClientActivity {
    fn note(&self, now_ms: i64) {
        self.latest.store(now_ms, Ordering::Relaxed);
    }

    /// True if a client has posted an event within the last second.
    pub(super) fn is_recent(&self, now_ms: i64) -> bool {
        // A clock that was set back counts as recent until it has caught up.
        now_ms - self.latest.load(Ordering::Relaxed) <= CLIENT_ACTIVITY_MS
    }
}

impl Intake {
    /// Stores an event and starts its run. Returns once everything is committed. `trace`: the `traceparent` of the
    /// request; `files`: large files of the body.
    pub async fn accept(
        &self,
        sender: EventSender<'_>,
        event: EventEnvelope,
        files: &BodyFiles,
        idempotency_key: Option<&str>,
        trace: Option<&str>,
    ) -> Result<AcceptedEvent, IntakeError> {
        self.accept_for(None, sender, event, files, idempotency_key, trace)
            .await
    }

    /// Like `accept`. With `only`, the event goes to this agent, whatever its scope and filters are.
    pub async fn accept_for(
        &self,
        only: Option<AgentId>,
        sender: EventSender<'_>,
        event: EventEnvelope,
        files: &BodyFiles,
        idempotency_key: Option<&str>,
        trace: Option<&str>,
    ) -> Result<AcceptedEvent, IntakeError> {
        let began = Instant::now();
        let accepted = self.decide_and_store(only, sender, event, files, idempotency_key, trace);
        let accepted = accepted.await;
        let result = match &accepted {
            Ok(AcceptedEvent { replayed: true, .. }) => "duplicate",
            Ok(AcceptedEvent { answer, .. }) if answer.run_id.is_none() => "no_agent",
            Ok(_) => "accepted",
            Err(error) => error.name(),
        };
        metrics::ingested(result, began.elapsed());
        accepted
    }

    /// Checks the rate limit of a workspace.
    pub(super) fn admit_event(&self, workspace: &WorkspaceId) -> Result<(), IntakeError> {
        if self.deps.lifecycle.stopping.is_cancelled() {
            return Err(IntakeError::Stopping);
        }
        let admitted = self.deps.rates.admit(workspace);
        admitted.map_err(|wait| IntakeError::TooFast { wait })
    }

    /// Checks the rate limits of a workspace and of the key that starts a run.
    pub(super) fn admit_start(
        &self,
        workspace: &WorkspaceId,
        key: StartingKey,
    ) -> Result<(), IntakeError> {
        self.admit_event(workspace)?;
        Ok(self.deps.own_limits.admit_key(workspace, key)?)
    }

    /// Stores an event of a key, within its limit of live runs.
    pub(super) async fn store_of_key(
        &self,
        workspace: &WorkspaceId,
        key: StartingKey,
        event: EventEnvelope,
        files: &BodyFiles,
        mut incoming: IntakeRequest,
    ) -> Result<AcceptedEvent, IntakeError> {
        let (limits, store) = (&self.deps.own_limits, &self.deps.store);
        incoming.start = limits.begin(store, workspace, key).await??;
        // Boxed: the future has the event several times, and each of its callers would have it, too.
        let stored = Box::pin(self.store_event(workspace, event, files, incoming)).await;
        if stored.as_ref().is_err_and(IntakeError::is_full_key) {
            limits.note_full(workspace, key.limited_id());
        }
        stored
    }

    async fn decide_and_store(
        &self,
        only: Option<AgentId>,
        sender: EventSender<'_>,
        event: EventEnvelope,
        files: &BodyFiles,
        idempotency_key: Option<&str>,
        trace: Option<&str>,
    ) -> Result<AcceptedEvent, IntakeError> {
        self.admit_start(sender.workspace, sender.key)?;
        self.activity.note(self.deps.clock.now_ms());
        let body_sha256 = sha256_hex(canonical_json(&event).as_bytes());
        let event_id = event
            .event_id
            .clone()
            .unwrap_or_else(|| Uuid::now_v7().to_string());
        let dedupe_key = match idempotency_key {
            Some(key) => format!("key:{key}"),
            None => format!("event:{event_id}"),
        };
        let incoming = IntakeRequest {
            event_id,
            dedupe_key,
            body_sha256,
            trace_parent: self.deps.spans.parent_of(trace),
            only,
            scope: sender.scope.clone(),
            posted_by: Some(sender.key.id),
            answers: None,
            parent: None,
            start: KeyStart::default(),
            actor_token: None,
        };
        let accepted = self
            .store_of_key(sender.workspace, sender.key, event, files, incoming)
            .await?;
        if accepted.replayed {
            // No decision was made now, and the event may be that of another key.
            self.check_reach(sender, accepted.answer.run_id).await?;
        }
        Ok(accepted)
    }

    /// Decides about a valid event, and stores it.
    pub(super) async fn store_event(
        &self,
        workspace: &WorkspaceId,
        event: EventEnvelope,
        files: &BodyFiles,
        incoming: IntakeRequest,
    ) -> Result<AcceptedEvent, IntakeError> {
        let key = incoming.key(workspace, self.deps.clock.now_ms());
        let is_hooked = self.deps.hooks.applies(HookMoment::Event, None);
        // A stored event gets its first answer, even if its files would no longer fit, or a hook would refuse it.
        if (is_hooked || may_have_files(&event, files))
            && let Some(stored) = self.deps.store.events().find_existing_event(key).await?
        {
            return accepted(stored, DecisionEffects::default());
        }
        let IntakeRequest {
            event_id,
            dedupe_key,
            body_sha256,
            trace_parent,
            only,
            scope,
            posted_by,
            answers,
            parent,
            start,
            actor_token,
        } = incoming;
        let event = if is_hooked {
            self.checked_event(workspace, &event_id, event).await?
        } else {
            event
        };
        let mut event = completed(event);
        let actor_token = actor_token.or(event.actor.as_mut().and_then(ActorToken::take));
        let run_id = RunId(Uuid::now_v7());
        let actor = EventActor {
            name: actor_name(event.actor.as_ref()),
            token: actor_token.map(|token| sealed(&self.deps.master_key, run_id, &token)),
        };
        let uploads = uploads_for(parent.as_ref(), &scope);
        let attached = self
            .artifacts
            .keep_attached(workspace, &event_id, &mut event, files, uploads);
        let attached = attached.await?;
        let raw = take_raw(&mut event, &event_id);
        let at = self.deps.clock.now_ms();
        let conversation = conversation_of(&event);
        let envelope = canonical_json(&event);
        let [event_type, source] = [&event.event_type, &event.source].map(Clone::clone);
        let bot_id = event.bot_id.clone();
        let parent_run = parent.as_ref().map(|parent| parent.parent);
        let input = DecisionInput {
            workspace: workspace.clone(),
            event_id: event_id.clone(),
            message: user_message(&event, Uuid::now_v7()),
            event: Arc::new(event),
            arrived_at: at,
            only,
            scope,
            parent,
            retry_of: None,
            retry_point: None,
            posted_by,
            key: start.allowance,
            trace_parent,
            run_id,
            was_accepted: false,
        };
        let ingest = Ingest {
            workspace: workspace.clone(),
            event_id,
            dedupe_key,
            body_sha256,
            event_type,
            source,
            bot_id,
            conversation,
            new_conversation_key: Uuid::now_v7(),
            envelope,
            raw,
            actor,
            max_live_runs: self.deps.limits.workspace_runs,
            at,
            answers,
            parent: parent_run,
            decide: PendingDecision::new(&self.decider, input),
        };
        let stored_as = ingest.event_id.clone();
        let taken = self.take(ingest, start.permit).await;
        if let Ok((ingested, _)) = &taken
            && !matches!(ingested, Ingested::Stored { .. })
        {
            self.drop_unstored(workspace, &stored_as, attached).await;
        }
        let (ingested, effects) = taken?;
        accepted(ingested, effects)
    }

    /// Deletes the files of an event that is not stored.
    async fn drop_unstored(&self, workspace: &WorkspaceId, event_id: &str, files: Attached) {
        let is_stored = self.is_stored(workspace, event_id, files.first()).await;
        // If it is unknown whether the event is stored, its files stay until they expire.
        if !is_stored.unwrap_or(true) {
            self.artifacts.drop_attached(event_id, files).await;
        }
    }

    /// True when an event is stored with its files, of which `first` is one.
    async fn is_stored(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        first: Option<Uuid>,
    ) -> Result<bool, StoreError> {
        let Some(first) = first else {
            return Ok(false);
        };
        // An earlier try with a lost answer may have committed the event while this one waited.
        let event = self
            .deps
            .store
            .events()
            .find_event(workspace, event_id)
            .await?;
        Ok(event.is_some_and(|event| event.envelope.contains(&first.to_string())))
    }

    /// Stores the event and starts its run, if the run is to start now.
    async fn take(
        &self,
        ingest: Ingest<PendingDecision>,
        start: Option<Permit<ApiKeyId>>,
    ) -> Result<(Ingested, DecisionEffects), StoreError> {
        let (deps, executor) = (Arc::clone(&self.deps), Arc::clone(&self.executor));
        let unconfirmed = Arc::clone(&self.unconfirmed);
        // A task of its own: the client may disconnect, but a stored run must be driven.
        let taking = self.deps.lifecycle.tasks.spawn(async move {
            let (workspace, at) = (ingest.workspace.clone(), ingest.at);
            let IngestOutcome { ingested, effects } = deps.store.events().ingest(ingest).await;
            // The next start of the key counts the stored run.
            drop(start);
            let ingested = match ingested {
                Ok(ingested) => failpoint::pass("ingest.after_commit")
                    .await
                    .map(|()| ingested),
                Err(error) => Err(error),
            };
            let mut effects = effects.unwrap_or_default();
            // The commit may have happened despite the error, and the run would have no driver.
            if let Err(error) = &ingested
                && error.is_transient()
                && let Some(run) = effects.run.take_if(|run| run.dispatch.is_some())
            {
                unconfirmed.add(workspace.clone(), run);
            }
            let ingested = ingested?;
            if !matches!(ingested, Ingested::Stored { .. }) {
                return Ok((ingested, effects));
            }
            for run in std::mem::take(&mut effects.cancelled) {
                deps.send_cancel(run, at);
            }
            if let Some(run) = effects.answer.as_ref().and_then(|answer| answer.run_id) {
                deps.notifier.notify_changed(run);
            }
            if let Some(run) = run_to_start(&effects) {
                let inputs = effects.run.take().filter(|inputs| inputs.run.id == run);
                executor.spawn(run, workspace, inputs);
            }
            Ok((ingested, effects))
        });
        taking.await.map_err(|_| StoreError::Closed)?
    }
}

/// Uploads that an event may bind, by its origin.
fn uploads_for(parent: Option<&ParentContext>, scope: &AgentReach) -> Uploads {
    match (parent, scope) {
        // A child run must not bind the uploads of clients.
        (Some(_), _) => Uploads::Closed,
        // Unbound uploads belong to the workspace, so a restricted sender could read foreign ones.
        (None, AgentReach::Only(_)) => Uploads::Refused,
        (None, AgentReach::All) => Uploads::OfClients,
    }
}

/// Takes the raw payload out of the event and leaves a reference to it.
fn take_raw(event: &mut EventEnvelope, event_id: &str) -> Option<String> {
    let raw = event.raw.take()?.to_string();
    event.raw_ref = Some(RawEventRef {
        ref_id: Some(event_id.to_owned()),
        storage_key: None,
    });
    Some(raw)
}

/// The answer to the sender. A replayed event gets its first answer.
fn accepted(ingested: Ingested, effects: DecisionEffects) -> Result<AcceptedEvent, IntakeError> {
    let (answer, replayed) = match ingested {
        Ingested::Stored { answer } => match effects.answer {
            Some(answer) => (answer, false),
            None => (read_answer(answer)?, false),
        },
        Ingested::Replayed { answer } => (read_answer(answer)?, true),
        Ingested::Mismatch => return Err(IntakeError::IdempotencyMismatch),
        Ingested::EventExists => return Err(IntakeError::EventExists),
        Ingested::Refused => {
            let refused = effects.refused;
            return Err(refused.unwrap_or(IntakeError::Store(StoreError::Closed)));
        }
    };
    Ok(AcceptedEvent { answer, replayed })
}

/// The run of a decision, if it was created to start at once.
fn run_to_start(effects: &DecisionEffects) -> Option<RunId> {
    let answer = effects.answer.as_ref().filter(|_| !effects.is_held)?;
    let is_created = answer.status == Some(RunStatus::Created);
    answer.run_id.filter(|_| is_created)
}

fn read_answer(answer: String) -> Result<EventAccepted, StoreError> {
    serde_json::from_str(&answer).map_err(|_| StoreError::Corrupt {
        column: "events.answer",
        row: answer,
    })
}
