//! Answers to interactions: for the waiting live run, otherwise as an event for the asking agent.

use std::sync::Arc;

use domain::api_key::AgentReach;
use domain::approval::{ApprovalAnswer, DEFAULT_SECONDS, HeldCall, call_text, read_answer};
use domain::budget::raise_of;
use domain::canonical::canonical_json;
use domain::interaction::MAX_SECONDS;
use domain::platform_action::ApprovalVerdict;
use protocol::JsonObject;
use protocol::approval::ApprovalScope;
use protocol::context::{ActorContext, AgentInput};
use protocol::event::EventEnvelope;
use protocol::hook::HookMoment;
use protocol::id::{ApiKeyId, ApprovalId, WorkspaceId};
use protocol::interaction::{AwaitedInteraction, INTERACTION_SUBMITTED, InteractionSubmission};
use protocol::principal::PrincipalKind;
use serde_json::json;
use store::{
    AnswerDelivery, AnsweredBy, ApprovalRecord, AuditEntry, CoveredCalls, DeliverAnswer,
    GATEWAY_QUESTION, InteractionRecord, StoreError, Unanswerable, answer_event_id, sha256_hex,
};
use uuid::Uuid;

use crate::artifacts::BodyFiles;
use crate::deps::RunDeps;
use crate::intake::{AcceptedEvent, Intake, IntakeError, IntakeRequest};
use crate::own_limits::{KeyStart, StartingKey};

/// A question with the sender of its answer.
pub struct AnsweredQuestion {
    pub record: InteractionRecord,
    pub sender: AnswerSender,
}

/// Credential of an answer.
#[derive(Clone, Debug)]
pub enum AnswerSender {
    Key(StartingKey),
    /// The link must still belong to the question when the answer is stored.
    Link {
        token_sha256: String,
    },
}

impl AnswerSender {
    fn actor(&self) -> ActorContext {
        let (kind, id) = match self {
            Self::Key(key) => ("api_key", Some(key.id.to_string())),
            Self::Link { .. } => ("link", None),
        };
        ActorContext {
            actor_type: kind.to_owned(),
            actor_id: id,
            ..ActorContext::default()
        }
    }

    fn key(&self) -> Option<ApiKeyId> {
        match self {
            Self::Key(key) => Some(key.id),
            Self::Link { .. } => None,
        }
    }

    fn token_sha256(&self) -> Option<String> {
        match self {
            Self::Key(_) => None,
            Self::Link { token_sha256 } => Some(token_sha256.clone()),
        }
    }

    /// Rule of the answer's entry in the audit of the asking run.
    fn rule(&self) -> String {
        match self {
            Self::Key(key) => format!("answered with API key {}", key.id),
            Self::Link { .. } => "answered by its link".to_owned(),
        }
    }
}

/// Reads the call of a question.
pub fn read_held_call(record: &InteractionRecord, held_call: &str) -> Result<HeldCall, StoreError> {
    serde_json::from_str(held_call).map_err(|_| StoreError::Corrupt {
        column: "interactions.held_call",
        row: record.id.clone(),
    })
}

/// Destination of an answer.
#[derive(Clone, Debug)]
pub enum Answered {
    /// The live run that waits for it. `replayed`: the same answer was given before.
    AnswerDelivery { replayed: bool },
    /// An event of the conversation.
    Event(AcceptedEvent),
}

/// Stores the answers of persons.
pub struct Interactions {
    pub(super) deps: Arc<RunDeps>,
    pub(super) intake: Arc<Intake>,
}

impl Interactions {
    /// Stores an answer that was checked against its question. The first answer is stored, a repeated one gets
    /// the same response, and a different one is a mismatch.
    pub async fn submit_interaction(
        &self,
        workspace: &WorkspaceId,
        question: &AnsweredQuestion,
        mut submission: InteractionSubmission,
    ) -> Result<Answered, IntakeError> {
        self.intake.admit_event(workspace)?;
        // The gateway sets the time, so it is no part of the hash.
        submission.submitted_at = None;
        let body_sha256 = sha256_hex(canonical_json(&submission).as_bytes());
        if question.record.is_awaited {
            self.check_answer(workspace, question, &submission).await?;
            let given = self.give_answer(workspace, question, &submission, &body_sha256);
            match given.await? {
                AnswerDelivery::Stored => return Ok(Answered::AnswerDelivery { replayed: false }),
                AnswerDelivery::Same => return Ok(Answered::AnswerDelivery { replayed: true }),
                AnswerDelivery::Other => return Err(IntakeError::IdempotencyMismatch),
                AnswerDelivery::Refused(why) => return Err(IntakeError::Unanswerable(why)),
                // A question about a budget concerns calls of this run only.
                AnswerDelivery::RunEnded if question.record.budget.is_some() => {
                    return Err(IntakeError::Unanswerable(Unanswerable::Expired));
                }
                // The gateway asked about a call of the run, which has no use for the answer any more.
                AnswerDelivery::RunEnded if question.record.sequence == GATEWAY_QUESTION => {
                    return Err(IntakeError::Unanswerable(Unanswerable::Cancelled));
                }
                // Final: an ended run never starts again.
                AnswerDelivery::RunEnded => {}
            }
        }
        let accepted = self.submit_event(workspace, question, submission, body_sha256);
        accepted.await.map(Answered::Event)
    }

    /// Stores an answer for the waiting live run.
    async fn give_answer(
        &self,
        workspace: &WorkspaceId,
        AnsweredQuestion { record, sender }: &AnsweredQuestion,
        submission: &InteractionSubmission,
        body_sha256: &str,
    ) -> Result<AnswerDelivery, StoreError> {
        let now = self.deps.clock.now_ms();
        let answer = AwaitedInteraction::Submitted {
            action_id: submission.action_id.clone(),
            values: submission.values.clone(),
            actor: sender.actor(),
        };
        let answer = canonical_json(&answer);
        let raised_to = record.budget.as_ref().and_then(|questioned| {
            // The answer was checked, so this is a raise or a refusal.
            let raise = raise_of(&questioned.measure, submission).ok()??;
            Some(questioned.limit.saturating_add(raise))
        });
        let approval = match &record.held_call {
            Some(call) => {
                self.approval_of(workspace, record, sender, call, submission)
                    .await?
            }
            None => None,
        };
        let given = self.deps.store.write(DeliverAnswer {
            approval,
            workspace: workspace.clone(),
            id: record.id.clone(),
            run_id: record.run_id,
            token_sha256: sender.token_sha256(),
            answer_sha256: body_sha256.to_owned(),
            raised_to,
            verdict: ApprovalVerdict::of(submission.action_id.as_deref()),
            audit: AuditEntry {
                id: Uuid::now_v7(),
                workspace: workspace.clone(),
                run_id: record.run_id,
                action: "interaction_answer",
                resource: record.id.clone(),
                operation: "submit",
                allowed: true,
                rule: sender.rule().into(),
                interaction_id: Some(record.id.clone()),
                bytes: answer.len() as u64,
                at: now,
                is_shared: false,
            },
            answer,
            at: now,
        });
        let given = given.await?;
        if given == AnswerDelivery::Stored {
            self.deps.notifier.wake(record.run_id);
            // The waiting call may be on any replica.
            self.deps.notifier.notify_question(record.run_id);
            if record.sequence == GATEWAY_QUESTION && record.budget.is_none() {
                // The question may be one about a platform action.
                self.deps.notifier.notify_action(record.run_id);
            }
        }
        Ok(given)
    }

    /// The approval that an answer to a question about a tool call creates. `None`: the call is denied.
    async fn approval_of(
        &self,
        workspace: &WorkspaceId,
        record: &InteractionRecord,
        sender: &AnswerSender,
        held_call: &str,
        submission: &InteractionSubmission,
    ) -> Result<Option<ApprovalRecord>, StoreError> {
        let call: HeldCall = read_held_call(record, held_call)?;
        // The answer was checked, so it has no fault.
        let (scope, covered, max_uses, seconds) = match read_answer(submission, &call) {
            Ok(ApprovalAnswer::Once) => {
                let text = call_text(&call.tool, &call.parameters);
                let request_sha256 = sha256_hex(text.as_bytes());
                let covered = CoveredCalls::Exact { request_sha256 };
                (ApprovalScope::Run, covered, Some(1), MAX_SECONDS)
            }
            Ok(ApprovalAnswer::Run { rules, count }) => {
                let covered = CoveredCalls::Rules(rules);
                (ApprovalScope::Run, covered, Some(count), DEFAULT_SECONDS)
            }
            Ok(ApprovalAnswer::Conversation(rules)) => {
                let covered = CoveredCalls::Rules(rules);
                (ApprovalScope::Conversation, covered, None, DEFAULT_SECONDS)
            }
            Ok(ApprovalAnswer::Deny) | Err(_) => return Ok(None),
        };
        let run = self.deps.store.runs().find_run(workspace, record.run_id);
        // Deleted with its run, so the answer is refused as well.
        let Some(run) = run.await? else {
            return Ok(None);
        };
        let now = self.deps.clock.now_ms();
        let mut expires_at = now.saturating_add(seconds.saturating_mul(1000));
        let definition_sha256 = call.amends.map(|amends| amends.definition_sha256);
        if definition_sha256.is_some() {
            // An amendment lasts as long as the frozen grant at most.
            expires_at = expires_at.min(run.deadline_at);
        }
        Ok(Some(ApprovalRecord {
            id: ApprovalId(Uuid::now_v7()),
            workspace: workspace.clone(),
            scope,
            agent_id: record.agent_id,
            conversation_key: run
                .conversation_key
                .filter(|_| scope == ApprovalScope::Conversation),
            run_id: Some(record.run_id),
            tool: call.tool,
            definition_sha256,
            covered,
            max_uses,
            used: 0,
            last_used_at: None,
            interaction_id: Some(record.id.clone()),
            created_at: now,
            created_by: match sender {
                AnswerSender::Key(key) => key.id.into(),
                AnswerSender::Link { .. } => PrincipalKind::Link.into(),
            },
            expires_at,
            revoked: None,
        }))
    }

    /// The event of an answer: of the same conversation, for the asking agent.
    async fn answer_event(
        &self,
        workspace: &WorkspaceId,
        AnsweredQuestion { record, sender }: &AnsweredQuestion,
        mut submission: InteractionSubmission,
    ) -> Result<EventEnvelope, StoreError> {
        let now = self.deps.clock.now_seconds();
        submission.submitted_at = Some(now);
        let source_event = self
            .deps
            .store
            .events()
            .find_event(workspace, &record.event_id);
        let source_event = source_event
            .await?
            .map(|event| event.envelope)
            .unwrap_or_default();
        let source_event: EventEnvelope =
            serde_json::from_str(&source_event).map_err(|_| StoreError::Corrupt {
                column: "events.envelope",
                row: record.event_id.clone(),
            })?;
        let answered_by = ("answered_by".to_owned(), json!(sender.actor()));
        Ok(EventEnvelope {
            event_type: INTERACTION_SUBMITTED.to_owned(),
            event_id: Some(answer_event_id(&record.id)),
            source_event_type: None,
            event_time: Some(now),
            input: Some(AgentInput {
                interaction: Some(submission),
                ..AgentInput::default()
            }),
            data: JsonObject::from_iter([answered_by]),
            raw: None,
            raw_ref: None,
            ..source_event
        })
    }

    /// Passes the answer for a waiting run through the hooks of events. It is not stored as an event.
    async fn check_answer(
        &self,
        workspace: &WorkspaceId,
        question: &AnsweredQuestion,
        submission: &InteractionSubmission,
    ) -> Result<(), IntakeError> {
        if !self.deps.hooks.applies(HookMoment::Event, None) {
            return Ok(());
        }
        let event = self.answer_event(workspace, question, submission.clone());
        let event_id = answer_event_id(&question.record.id);
        let checked = self
            .intake
            .checked_event(workspace, &event_id, event.await?);
        // A hook cannot replace an answer, only deny it.
        checked.await.map(drop)
    }

    /// Stores an answer as an event of the same conversation, for the asking agent.
    async fn submit_event(
        &self,
        workspace: &WorkspaceId,
        question: &AnsweredQuestion,
        submission: InteractionSubmission,
        body_sha256: String,
    ) -> Result<AcceptedEvent, IntakeError> {
        let AnsweredQuestion { record, sender } = question;
        let event = self.answer_event(workspace, question, submission).await?;
        let event_id = answer_event_id(&record.id);
        let incoming = IntakeRequest {
            // Derived from the question, so that a second answer of any client meets the first.
            dedupe_key: event_id.clone(),
            event_id,
            body_sha256,
            trace_parent: None,
            only: Some(record.agent_id),
            scope: AgentReach::All,
            posted_by: sender.key(),
            answers: Some(AnsweredBy {
                interaction: record.id.clone(),
                token_sha256: sender.token_sha256(),
            }),
            parent: None,
            start: KeyStart::default(),
            actor_token: None,
        };
        let files = BodyFiles::default();
        let accepted = match sender {
            AnswerSender::Key(key) => {
                self.deps.own_limits.admit_key(workspace, *key)?;
                let storing = self
                    .intake
                    .store_of_key(workspace, *key, event, &files, incoming);
                storing.await?
            }
            AnswerSender::Link { .. } => {
                let storing = self.intake.store_event(workspace, event, &files, incoming);
                storing.await?
            }
        };
        if !accepted.replayed {
            self.deps.notifier.notify_question(record.run_id);
        }
        Ok(accepted)
    }
}
