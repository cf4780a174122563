//! From a person's answer to a run of the agent that asked.

use domain::canonical::canonical_json;
use protocol::context::AgentInput;
use protocol::event::EventEnvelope;
use protocol::id::WorkspaceId;
use protocol::interaction::{INTERACTION_SUBMITTED, InteractionSubmission};
use store::{AnsweredBy, InteractionRecord, StoreError, answer_event_id, sha256_hex};

use crate::runs::Runs;
use crate::runs::artifacts::BodyFiles;
use crate::runs::start::{Accepted, Incoming, StartError};

/// A question that is answered.
pub struct Question {
    pub record: InteractionRecord,
    /// The link that the answer came by: it must still be the question's when the answer is stored.
    pub token_sha256: Option<String>,
}

impl Runs {
    /// Takes the answer to a question, which it answers, as an event of the same conversation. The first one is
    /// taken, the same again gets the same answer, and another one is a mismatch.
    pub async fn submit_interaction(
        &self,
        workspace: &WorkspaceId,
        question: &Question,
        mut submission: InteractionSubmission,
    ) -> Result<Accepted, StartError> {
        let Question {
            record: question,
            token_sha256,
        } = question;
        self.admit_event(workspace)?;
        // When it came is ours to say, and no part of what was said.
        submission.submitted_at = None;
        let body_sha256 = sha256_hex(canonical_json(&submission).as_bytes());
        let now = self.0.clock.now_seconds();
        submission.submitted_at = Some(now);
        let asked = self.0.store.find_event(workspace, &question.event_id);
        let asked = asked.await?.map(|event| event.envelope).unwrap_or_default();
        let asked: EventEnvelope =
            serde_json::from_str(&asked).map_err(|_| StoreError::Corrupt {
                column: "events.envelope",
                row: question.event_id.clone(),
            })?;
        let event_id = answer_event_id(&question.id);
        let event = EventEnvelope {
            event_type: INTERACTION_SUBMITTED.to_owned(),
            event_id: Some(event_id.clone()),
            source_event_type: None,
            event_time: Some(now),
            input: Some(AgentInput {
                interaction: Some(submission),
                ..AgentInput::default()
            }),
            data: protocol::JsonObject::new(),
            raw: None,
            raw_ref: None,
            ..asked
        };
        let incoming = Incoming {
            dedupe_key: event_id.clone(),
            event_id,
            body_sha256,
            trace_parent: None,
            only: Some(question.agent_id),
            answers: Some(AnsweredBy {
                interaction: question.id.clone(),
                token_sha256: token_sha256.clone(),
            }),
        };
        let files = BodyFiles::default();
        self.store_event(workspace, (event, &files), incoming).await
    }
}
