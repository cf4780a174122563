//! From an event to a stored run: one transaction, and nothing on a refusal (contracts §3).

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::canonical::canonical_json;
use domain::event::{completed, conversation_of};
use domain::trace::TraceParent;
use protocol::admin::Fault;
use protocol::context::RawEventRef;
use protocol::event::{EventAccepted, EventEnvelope};
use protocol::id::{AgentId, RunId, RunnerId, WorkspaceId};
use protocol::run::RunStatus;
use store::{
    AnsweredBy, ChildRefused, EventKey, Ingest, Ingested, StoreError, Unanswerable, failpoint,
    sha256_hex,
};
use uuid::Uuid;

use crate::Runs;
use crate::artifacts::{AttachError, BodyFiles, UploadError, Uploads, may_have_files};
use crate::bus::Ring;
use crate::children::ChildOf;
use crate::decide::Aside;
use telemetry::metrics;

/// An event that is stored now or was before.
#[derive(Clone, Debug)]
pub struct Accepted {
    pub answer: EventAccepted,
    /// The same key and body came before: this is the first answer.
    pub replayed: bool,
}

/// What an event is known by, and who may have it.
pub(super) struct Incoming {
    pub(super) event_id: String,
    pub(super) dedupe_key: String,
    pub(super) body_sha256: String,
    /// The span that it came with, where traces are told to somebody.
    pub(super) trace_parent: Option<TraceParent>,
    /// The one agent that it is for; else all are asked.
    pub(super) only: Option<AgentId>,
    /// The question that it answers.
    pub(super) answers: Option<AnsweredBy>,
    /// The run that asks for a child run by it.
    pub(super) child: Option<ChildOf>,
}

/// Why an event was not taken. Nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(
        "this idempotency key, or event_id, was used with another body; send that body, or use a new one"
    )]
    IdempotencyMismatch,
    #[error(
        "this event_id was posted under another idempotency key, or without one; send it as it was sent first"
    )]
    EventExists,
    #[error(
        "several agents want this event with equal right: {}; give one of them a higher priority",
        .0.join(", ")
    )]
    BindingConflict(Vec<String>),
    #[error(
        "run {0} of the same agent is active in this conversation; post the event again when it has ended, or cancel it"
    )]
    RunActive(RunId),
    #[error(
        "{most} runs live in this workspace, and no more may (limits.workspace_runs); post the event \
         again when some have ended"
    )]
    WorkspaceFull { most: u64 },
    #[error(
        "{most} runs live at the runner's endpoint, and no more may (max_runs); post the event again \
         when some have ended"
    )]
    EndpointFull { most: u64 },
    /// `wait`: then there is room for one.
    #[error("events of this workspace come too fast (limits.workspace_events_per_second)")]
    TooFast { wait: Duration },
    #[error("100 runs of this agent wait in this conversation")]
    QueueFull,
    /// `status`: what the registry says of the runner.
    #[error("runner {runner} cannot be called: {why}")]
    RunnerUnavailable {
        runner: RunnerId,
        status: &'static str,
        why: String,
    },
    #[error("a file of the event cannot be kept: {0}")]
    Attachment(UploadError),
    #[error("{} {}", .0.pointer, .0.message)]
    Reference(Fault),
    #[error("the agent that asked is disabled or gone; enable it and send the answer again")]
    AgentGone,
    #[error("the agent is disabled or gone; go on without it")]
    CalledAgentGone,
    #[error("the question cannot be answered any more")]
    Unanswerable(Unanswerable),
    #[error("{0}")]
    ChildRefused(ChildRefused),
    #[error("the gateway is stopping")]
    Stopping,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl StartError {
    /// The name of the reason, for counting.
    fn name(&self) -> &'static str {
        match self {
            Self::IdempotencyMismatch => "idempotency_mismatch",
            Self::EventExists => "event_exists",
            Self::BindingConflict(_) => "binding_conflict",
            Self::RunActive(_) => "run_active",
            Self::WorkspaceFull { .. } => "workspace_full",
            Self::EndpointFull { .. } => "endpoint_full",
            Self::TooFast { .. } => "too_fast",
            Self::QueueFull => "queue_full",
            Self::RunnerUnavailable { .. } => "runner_unavailable",
            Self::Attachment(_) | Self::Reference(_) => "attachment",
            Self::AgentGone | Self::CalledAgentGone => "agent_gone",
            Self::Unanswerable(_) => "unanswerable",
            Self::ChildRefused(_) => "childless",
            Self::Stopping => "stopping",
            Self::Store(_) => "store",
        }
    }
}

impl From<AttachError> for StartError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Reference(fault) => Self::Reference(fault),
            AttachError::Upload(error) => Self::Attachment(error),
            AttachError::Store(error) => Self::Store(error),
        }
    }
}

impl Runs {
    /// Takes an event of a workspace and starts its run. Returns once everything is committed. `trace`: the
    /// `traceparent` that it came with; `files`: what was taken out of its body.
    pub async fn accept(
        &self,
        workspace: &WorkspaceId,
        (event, files): (EventEnvelope, &BodyFiles),
        idempotency_key: Option<&str>,
        trace: Option<&str>,
    ) -> Result<Accepted, StartError> {
        let began = Instant::now();
        let accepted = self.decide_and_store(workspace, (event, files), idempotency_key, trace);
        let accepted = accepted.await;
        let result = match &accepted {
            Ok(Accepted { replayed: true, .. }) => "duplicate",
            Ok(Accepted { answer, .. }) if answer.run_id.is_none() => "no_agent",
            Ok(_) => "accepted",
            Err(error) => error.name(),
        };
        metrics::ingested(result, began.elapsed());
        accepted
    }

    /// Whether one more event may be looked at.
    pub(super) fn admit_event(&self, workspace: &WorkspaceId) -> Result<(), StartError> {
        if self.0.stopping.is_cancelled() {
            return Err(StartError::Stopping);
        }
        let admitted = self.0.rates.admit(workspace);
        admitted.map_err(|wait| StartError::TooFast { wait })
    }

    async fn decide_and_store(
        &self,
        workspace: &WorkspaceId,
        (event, files): (EventEnvelope, &BodyFiles),
        idempotency_key: Option<&str>,
        trace: Option<&str>,
    ) -> Result<Accepted, StartError> {
        self.admit_event(workspace)?;
        let body_sha256 = sha256_hex(canonical_json(&event).as_bytes());
        let event_id = event
            .event_id
            .clone()
            .unwrap_or_else(|| Uuid::now_v7().to_string());
        let dedupe_key = match idempotency_key {
            Some(key) => format!("key:{key}"),
            None => format!("event:{event_id}"),
        };
        let incoming = Incoming {
            event_id,
            dedupe_key,
            body_sha256,
            trace_parent: self.0.spans.goes_on_with(trace),
            only: None,
            answers: None,
            child: None,
        };
        self.store_event(workspace, (event, files), incoming).await
    }

    /// Decides about an event that is judged, and stores it.
    pub(super) async fn store_event(
        &self,
        workspace: &WorkspaceId,
        (event, files): (EventEnvelope, &BodyFiles),
        incoming: Incoming,
    ) -> Result<Accepted, StartError> {
        let Incoming {
            event_id,
            dedupe_key,
            body_sha256,
            trace_parent,
            only,
            answers,
            child,
        } = incoming;
        let key = EventKey {
            workspace,
            event_id: &event_id,
            dedupe_key: &dedupe_key,
            body_sha256: &body_sha256,
            at: self.0.clock.now_ms(),
        };
        // What is known is answered as it was, also where there is no room for its files any more.
        if may_have_files(&event, files)
            && let Some(known) = self.0.store.events().find_known_event(key).await?
        {
            return accepted(known, &Aside::default());
        }
        let mut event = completed(event);
        let uploads = match child {
            Some(_) => Uploads::Closed,
            None => Uploads::OfClients,
        };
        let files = (files, uploads);
        let attached = self.keep_attached(workspace, &event_id, &mut event, files);
        let attached = attached.await?;
        let raw = event.raw.take().map(|raw| raw.to_string());
        if raw.is_some() {
            event.raw_ref = Some(RawEventRef {
                ref_id: Some(event_id.clone()),
                storage_key: None,
            });
        }
        let aside = Aside::default();
        let at = self.0.clock.now_ms();
        let conversation = conversation_of(&event);
        let envelope = canonical_json(&event);
        let [event_type, source] = [&event.event_type, &event.source].map(Clone::clone);
        let bot_id = event.bot_id.clone();
        let parent = child.as_ref().map(|child| child.parent);
        let deciding = (Arc::new(event), only, child, trace_parent, at);
        let decider = self.decider(workspace, event_id.clone(), deciding, aside.clone());
        let (decide, ready_bytes) = decider.await;
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
            max_live_runs: self.0.limits.workspace_runs,
            at,
            decide,
            ready_bytes,
            answers,
            parent,
        };
        let stored_as = ingest.event_id.clone();
        let taken = self.take(ingest, aside.clone()).await;
        if let Ok(ingested) = &taken
            && !matches!(ingested, Ingested::Stored { .. })
        {
            let stays = self.stays(workspace, &stored_as, attached.first()).await;
            // Where nobody knows whether the event stands, its files stay until they expire.
            if !stays.unwrap_or(true) {
                self.drop_attached(&stored_as, attached).await;
            }
        }
        accepted(taken?, &aside)
    }

    /// Whether an event stands with its files, the first of which is this one, though its sender is told of another: an earlier try of it, whose
    /// answer was lost, was committed while this one waited.
    async fn stays(
        &self,
        workspace: &WorkspaceId,
        event_id: &str,
        first: Option<Uuid>,
    ) -> Result<bool, StoreError> {
        let Some(first) = first else {
            return Ok(false);
        };
        let event = self
            .0
            .store
            .events()
            .find_event(workspace, event_id)
            .await?;
        Ok(event.is_some_and(|event| event.envelope.contains(&first.to_string())))
    }

    /// Stores the event and starts its run, if that is to go now. Goes on when the client has gone:
    /// an event that is stored is also driven.
    async fn take(&self, ingest: Ingest, aside: Aside) -> Result<Ingested, StoreError> {
        let runs = self.clone();
        let taking = self.0.tasks.spawn(async move {
            let (workspace, at) = (ingest.workspace.clone(), ingest.at);
            let storing = async {
                let ingested = runs.0.store.events().ingest(ingest).await?;
                failpoint::pass("ingest.after_commit").await?;
                Ok(ingested)
            };
            let ingested = storing.await;
            if let Some(begun) = aside.begun_unheard(&ingested) {
                runs.look_for(workspace.clone(), begun);
            }
            let ingested = ingested?;
            let Ingested::Stored { answer } = &ingested else {
                return Ok(ingested);
            };
            for run in aside.cancelled() {
                match runs.0.live.get(run) {
                    Some(live) => live.request_cancel(at),
                    None => runs.0.doorbell.ring(Ring::Cancelled(run)),
                }
            }
            if let Some(run) = created_run(answer) {
                let fresh = aside.fresh().filter(|fresh| fresh.run.id == run);
                runs.spawn(run, workspace, fresh);
            }
            Ok(ingested)
        });
        taking.await.map_err(|_| StoreError::Closed)?
    }
}

/// What a client is told of an event. `aside`: why it was refused, if it was.
fn accepted(ingested: Ingested, aside: &Aside) -> Result<Accepted, StartError> {
    let (answer, replayed) = match ingested {
        Ingested::Stored { answer } => (answer, false),
        Ingested::Replayed { answer } => (answer, true),
        Ingested::Mismatch => return Err(StartError::IdempotencyMismatch),
        Ingested::EventExists => return Err(StartError::EventExists),
        Ingested::Refused => {
            let refused = aside.refused();
            return Err(refused.unwrap_or(StartError::Store(StoreError::Closed)));
        }
    };
    let answer = serde_json::from_str(&answer).map_err(|_| StoreError::Corrupt {
        column: "events.answer",
        row: answer,
    })?;
    Ok(Accepted { answer, replayed })
}

/// The run that an answer tells of, when it was made to go at once.
pub(super) fn created_run(answer: &str) -> Option<RunId> {
    let answer: EventAccepted = serde_json::from_str(answer).ok()?;
    let is_created = answer.status == Some(RunStatus::Created);
    answer.run_id.filter(|_| is_created)
}
