//! From an event to a stored run: one transaction, and nothing on a refusal (contracts §3).

use std::sync::{Arc, Mutex, PoisonError};

use domain::admission::{Admission, admit};
use domain::authorization::{Subject, authorize};
use domain::binding::{Resolution, resolve};
use domain::canonical::canonical_json;
use domain::event::{completed, conversation_of};
use domain::run::deadline;
use domain::state::Owner;
use protocol::event::{EventAccepted, EventEnvelope, MESSAGE_RECEIVED};
use protocol::id::{RunId, RunnerId, WorkspaceId};
use protocol::manifest::AgentRunnerManifest;
use protocol::run::RunStatus;
use serde_json::json;
use store::{
    Candidate, Facts, Ingest, Ingested, NewRun, Plan, StoreError, UserMessage, sha256_hex,
};
use uuid::Uuid;

use crate::runs::Runs;

/// The most characters of a transcript item's text.
const TRANSCRIPT_CHARACTERS: usize = 4000;

/// An event that is stored now or was before.
#[derive(Clone, Debug)]
pub struct Accepted {
    pub answer: EventAccepted,
    /// The same key and body came before: this is the first answer.
    pub replayed: bool,
}

/// Why an event was not taken. Nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("this idempotency key was used with another body")]
    IdempotencyMismatch,
    #[error("this event_id was posted under another idempotency key")]
    EventExists,
    #[error("several agents want this event with equal right: {}", .0.join(", "))]
    BindingConflict(Vec<String>),
    #[error("run {0} of the same agent is active in this conversation")]
    RunActive(RunId),
    #[error("no endpoint serves runner {0} at the moment")]
    RunnerUnavailable(RunnerId),
    #[error("the gateway is stopping")]
    Stopping,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Runs {
    /// Takes an event of a workspace and starts its run. Returns once everything is committed.
    pub async fn accept(
        &self,
        workspace: &WorkspaceId,
        event: EventEnvelope,
        idempotency_key: Option<&str>,
    ) -> Result<Accepted, StartError> {
        if self.0.stopping.is_cancelled() {
            return Err(StartError::Stopping);
        }
        let body_sha256 = sha256_hex(canonical_json(&event).as_bytes());
        let event_id = event
            .event_id
            .clone()
            .unwrap_or_else(|| Uuid::now_v7().to_string());
        let dedupe_key = match idempotency_key {
            Some(key) => format!("key:{key}"),
            None => format!("event:{event_id}"),
        };
        let event = completed(event);
        let refused = Arc::new(Mutex::new(None));
        let ingest = Ingest {
            workspace: workspace.clone(),
            event_id: event_id.clone(),
            dedupe_key,
            body_sha256,
            event_type: event.event_type.clone(),
            source: event.source.clone(),
            bot_id: event.bot_id.clone(),
            conversation: conversation_of(&event),
            new_conversation_key: Uuid::now_v7(),
            envelope: canonical_json(&event),
            at: self.0.clock.now_ms(),
            decide: self.decider(workspace, event_id, event, &refused),
        };
        let (answer, replayed) = match self.take(ingest).await? {
            Ingested::Stored { answer } => (answer, false),
            Ingested::Replayed { answer } => (answer, true),
            Ingested::Mismatch => return Err(StartError::IdempotencyMismatch),
            Ingested::EventExists => return Err(StartError::EventExists),
            Ingested::Refused => {
                let reason = refused
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                return Err(reason.unwrap_or(StartError::Store(StoreError::Closed)));
            }
        };
        let answer: EventAccepted =
            serde_json::from_str(&answer).map_err(|_| StoreError::Corrupt {
                column: "events.answer",
                row: answer,
            })?;
        Ok(Accepted { answer, replayed })
    }

    /// Stores the event and starts its run. Goes on when the client has gone: an event that is
    /// stored is also driven.
    async fn take(&self, ingest: Ingest) -> Result<Ingested, StoreError> {
        let runs = self.clone();
        let taking = self.0.tasks.spawn(async move {
            let workspace = ingest.workspace.clone();
            let ingested = runs.0.store.ingest(ingest).await?;
            if let Ingested::Stored { answer } = &ingested
                && let Ok(EventAccepted {
                    run_id: Some(run), ..
                }) = serde_json::from_str(answer)
            {
                runs.spawn(run, workspace);
            }
            Ok(ingested)
        });
        taking.await.map_err(|_| StoreError::Closed)?
    }

    /// The pure decision, as the store calls it under the conversation's lock.
    fn decider(
        &self,
        workspace: &WorkspaceId,
        event_id: String,
        event: EventEnvelope,
        refused: &Arc<Mutex<Option<StartError>>>,
    ) -> Arc<dyn Fn(&Facts) -> Plan + Send + Sync> {
        let inner = Arc::clone(&self.0);
        let workspace = workspace.clone();
        let refused = Arc::clone(refused);
        let (run_id, message_id) = (RunId(Uuid::now_v7()), Uuid::now_v7());
        Arc::new(move |facts: &Facts| {
            let deciding = Deciding {
                inner: &inner,
                workspace: &workspace,
                event_id: &event_id,
                event: &event,
                run_id,
                message_id,
            };
            deciding.decide(facts).unwrap_or_else(|reason| {
                *refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
                Plan::Refuse
            })
        })
    }
}

struct Deciding<'a> {
    inner: &'a super::Inner,
    workspace: &'a WorkspaceId,
    event_id: &'a str,
    event: &'a EventEnvelope,
    run_id: RunId,
    message_id: Uuid,
}

impl Deciding<'_> {
    fn decide(&self, facts: &Facts) -> Result<Plan, StartError> {
        let winner = match resolve(&facts.candidates, |one| &one.agent.spec, self.event) {
            Resolution::Nobody => {
                return Ok(Plan::Keep {
                    answer: self.no_agent(),
                });
            }
            Resolution::Tie(names) => return Err(StartError::BindingConflict(names)),
            Resolution::Winner(winner) => winner,
        };
        let active = facts
            .active
            .iter()
            .find(|run| run.agent_id == winner.agent.id);
        match admit(winner.agent.spec.concurrency, active.map(|run| run.run_id)) {
            Admission::Busy(run) => Err(StartError::RunActive(run)),
            Admission::Start => {
                let run = Box::new(self.new_run(winner)?);
                Ok(Plan::Start {
                    run,
                    answer: self.created(),
                })
            }
        }
    }

    fn new_run(&self, winner: &Candidate) -> Result<NewRun, StartError> {
        let spec = &winner.agent.spec;
        let unavailable = || StartError::RunnerUnavailable(spec.runner_id.clone());
        let runner = winner
            .runner
            .as_ref()
            .filter(|runner| runner.accepted)
            .ok_or_else(unavailable)?;
        let manifest: AgentRunnerManifest =
            serde_json::from_str(&runner.manifest).map_err(|_| unavailable())?;
        let conversation = conversation_of(self.event);
        let subject = Subject {
            run_id: self.run_id,
            agent_version: winner.agent.version,
            endpoint_id: runner.endpoint_id,
            event_id: self.event_id,
            owner: Owner {
                workspace: self.workspace,
                runner: &manifest.id,
                agent: winner.agent.id,
                bot_id: self.event.bot_id.as_deref(),
                conversation: conversation.as_ref(),
                actor: self.event.actor.as_ref(),
                subject: self.event.subject.as_ref(),
            },
        };
        let snapshot = canonical_json(&authorize(&self.inner.catalog, &manifest, spec, &subject));
        let now = self.inner.clock.now_ms();
        let most = i64::try_from(self.inner.limits.max_deadline.as_millis()).unwrap_or(i64::MAX);
        let mut frozen = spec.clone();
        frozen.config = domain::form::with_defaults(&manifest.config_schema, &spec.config);
        Ok(NewRun {
            id: self.run_id,
            agent_id: winner.agent.id,
            agent_version: winner.agent.version,
            runner_id: spec.runner_id.clone(),
            endpoint_id: runner.endpoint_id,
            deadline_at: deadline(frozen.config.get(domain::form::TIMEOUT), now, most),
            agent_spec: canonical_json(&frozen),
            snapshot_sha256: sha256_hex(snapshot.as_bytes()),
            snapshot,
            user_message: self.user_message(),
        })
    }

    fn user_message(&self) -> Option<UserMessage> {
        let input = self
            .event
            .input
            .as_ref()
            .filter(|_| self.event.event_type == MESSAGE_RECEIVED)?;
        let contents: Vec<_> = input
            .contents
            .iter()
            .map(|part| {
                let mut part = part.clone();
                let inline = part.image_base64.take().is_some() | part.file_base64.take().is_some();
                (part, inline)
            })
            .collect();
        let redacted = contents.iter().any(|(_, inline)| *inline);
        let contents: Vec<_> = contents.into_iter().map(|(part, _)| part).collect();
        let mut message = json!({"role": "user", "content": contents});
        if redacted {
            message["content_redacted"] = json!(true);
        }
        Some(UserMessage {
            id: self.message_id,
            content: input.text.as_deref().map(transcript_text),
            content_json: message.to_string(),
            attachment_refs: attachment_refs(input),
        })
    }

    fn created(&self) -> String {
        canonical_json(&EventAccepted {
            event_id: self.event_id.to_owned(),
            run_id: Some(self.run_id),
            run_url: Some(format!("/v1/runs/{}", self.run_id)),
            status: Some(RunStatus::Created),
            reason: None,
        })
    }

    fn no_agent(&self) -> String {
        canonical_json(&EventAccepted {
            event_id: self.event_id.to_owned(),
            run_id: None,
            run_url: None,
            status: None,
            reason: Some("no_agent".to_owned()),
        })
    }
}

/// Attachments by reference: inline content stays in the event alone.
fn attachment_refs(input: &protocol::context::AgentInput) -> String {
    let refs: Vec<_> = input
        .attachments
        .iter()
        .map(|attachment| protocol::context::InputAttachment {
            content: None,
            ..attachment.clone()
        })
        .collect();
    canonical_json(&refs)
}

/// A text as the transcript shows it; `content_json` keeps the whole.
pub(crate) fn transcript_text(text: &str) -> String {
    if text.chars().count() <= TRANSCRIPT_CHARACTERS {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(TRANSCRIPT_CHARACTERS - 3).collect();
    short.push_str("...");
    short
}
