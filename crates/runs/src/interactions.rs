//! Takes a person's answer: for the live run that waits for it, else as an event for the agent that asked.

use domain::canonical::canonical_json;
use protocol::JsonObject;
use protocol::context::{ActorContext, AgentInput};
use protocol::event::EventEnvelope;
use protocol::id::{ApiKeyId, WorkspaceId};
use protocol::interaction::{AwaitedInteraction, INTERACTION_SUBMITTED, InteractionSubmission};
use serde_json::json;
use store::{
    AnswerDelivery, AnsweredBy, AuditEntry, DeliverAnswer, InteractionRecord, StoreError,
    answer_event_id, sha256_hex,
};
use uuid::Uuid;

use crate::Runs;
use crate::artifacts::BodyFiles;
use crate::bus::Ring;
use crate::start::{Accepted, Incoming, StartError};

/// A question that is answered.
pub struct Question {
    pub record: InteractionRecord,
    pub sender: AnswerSender,
}

/// The credential that an answer came with.
#[derive(Clone, Debug)]
pub enum AnswerSender {
    Key(ApiKeyId),
    /// The link must still be the question's when the answer is stored.
    Link {
        token_sha256: String,
    },
}

impl AnswerSender {
    fn actor(&self) -> ActorContext {
        let (kind, id) = match self {
            Self::Key(id) => ("api_key", Some(id.to_string())),
            Self::Link { .. } => ("link", None),
        };
        ActorContext {
            actor_type: kind.to_owned(),
            actor_id: id,
            actor_name: None,
            metadata: JsonObject::new(),
        }
    }

    fn token_sha256(&self) -> Option<String> {
        match self {
            Self::Key(_) => None,
            Self::Link { token_sha256 } => Some(token_sha256.clone()),
        }
    }

    /// What the audit of the asking run says of an answer.
    fn rule(&self) -> String {
        match self {
            Self::Key(id) => format!("answered with API key {id}"),
            Self::Link { .. } => "answered by its link".to_owned(),
        }
    }
}

/// Where an answer went.
#[derive(Clone, Debug)]
pub enum Answered {
    /// To the live run that waits for it. `replayed`: the same answer was given before.
    AnswerDelivery { replayed: bool },
    /// It is an event.
    Event(Accepted),
}

impl Runs {
    /// Takes an answer that was checked against its question. The first one is taken, the same again gets the same
    /// response, and another one is a mismatch.
    pub async fn submit_interaction(
        &self,
        workspace: &WorkspaceId,
        question: &Question,
        mut submission: InteractionSubmission,
    ) -> Result<Answered, StartError> {
        self.admit_event(workspace)?;
        // When it came is ours to say, and no part of what was said.
        submission.submitted_at = None;
        let body_sha256 = sha256_hex(canonical_json(&submission).as_bytes());
        if question.record.is_awaited {
            let given = self.give_answer(workspace, question, &submission, &body_sha256);
            match given.await? {
                AnswerDelivery::Stored => return Ok(Answered::AnswerDelivery { replayed: false }),
                AnswerDelivery::Same => return Ok(Answered::AnswerDelivery { replayed: true }),
                AnswerDelivery::Other => return Err(StartError::IdempotencyMismatch),
                AnswerDelivery::Refused(why) => return Err(StartError::Unanswerable(why)),
                // For good: no run begins again, so nothing is given to it after this.
                AnswerDelivery::RunEnded => {}
            }
        }
        let accepted = self.submit_event(workspace, question, submission, body_sha256);
        accepted.await.map(Answered::Event)
    }

    /// Gives an answer to the run that asked, if it lives.
    async fn give_answer(
        &self,
        workspace: &WorkspaceId,
        Question { record, sender }: &Question,
        submission: &InteractionSubmission,
        body_sha256: &str,
    ) -> Result<AnswerDelivery, StoreError> {
        let now = self.0.clock.now_ms();
        let answer = AwaitedInteraction::Submitted {
            action_id: submission.action_id.clone(),
            values: submission.values.clone(),
            actor: sender.actor(),
        };
        let answer = canonical_json(&answer);
        let given = self.0.store.write(DeliverAnswer {
            workspace: workspace.clone(),
            id: record.id.clone(),
            run_id: record.run_id,
            token_sha256: sender.token_sha256(),
            answer_sha256: body_sha256.to_owned(),
            audit: AuditEntry {
                id: Uuid::now_v7(),
                workspace: workspace.clone(),
                run_id: record.run_id,
                action: "interaction_answer",
                resource: record.id.clone(),
                operation: "submit",
                allowed: true,
                rule: sender.rule().into(),
                bytes: answer.len() as u64,
                at: now,
                is_shared: false,
            },
            answer,
            at: now,
        });
        let given = given.await?;
        if given == AnswerDelivery::Stored {
            self.0.doorbell.wake(record.run_id);
            // The call that waits may be on any replica.
            self.0.doorbell.ring(Ring::Advanced(record.run_id));
        }
        Ok(given)
    }

    /// Stores an answer as an event of the same conversation, for the agent that asked.
    async fn submit_event(
        &self,
        workspace: &WorkspaceId,
        Question { record, sender }: &Question,
        mut submission: InteractionSubmission,
        body_sha256: String,
    ) -> Result<Accepted, StartError> {
        let now = self.0.clock.now_seconds();
        submission.submitted_at = Some(now);
        let asked = self
            .0
            .store
            .events()
            .find_event(workspace, &record.event_id);
        let asked = asked.await?.map(|event| event.envelope).unwrap_or_default();
        let asked: EventEnvelope =
            serde_json::from_str(&asked).map_err(|_| StoreError::Corrupt {
                column: "events.envelope",
                row: record.event_id.clone(),
            })?;
        let event_id = answer_event_id(&record.id);
        let answered_by = ("answered_by".to_owned(), json!(sender.actor()));
        let event = EventEnvelope {
            event_type: INTERACTION_SUBMITTED.to_owned(),
            event_id: Some(event_id.clone()),
            source_event_type: None,
            event_time: Some(now),
            input: Some(AgentInput {
                interaction: Some(submission),
                ..AgentInput::default()
            }),
            data: JsonObject::from_iter([answered_by]),
            raw: None,
            raw_ref: None,
            ..asked
        };
        let incoming = Incoming {
            dedupe_key: event_id.clone(),
            event_id,
            body_sha256,
            trace_parent: None,
            only: Some(record.agent_id),
            answers: Some(AnsweredBy {
                interaction: record.id.clone(),
                token_sha256: sender.token_sha256(),
            }),
            child: None,
        };
        let files = BodyFiles::default();
        self.store_event(workspace, (event, &files), incoming).await
    }
}
