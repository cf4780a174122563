//! Start of a run from a message, and answers to its questions.

use http::HeaderMap;
use protocol::JsonObject;
use protocol::context::{ActorContext, AgentInput, DeliveryContext};
use protocol::event::{EventAccepted, EventConversation, EventEnvelope, MESSAGE_RECEIVED};
use protocol::id::{AgentId, RunId};
use store::{StoreError, sha256_hex};

use crate::questions::{AnswerOutput, capabilities};
use client_api::client::body_files::ExtractedFiles;
use client_api::client::interactions::{ContinuedRun, answer_with_key};
use domain::event::check_posted;
use runs::intake::IntakeError;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::query::{idempotency_key, trace_header};
use web::state::ApiState;

/// Characters of a conversation that the gateway makes.
const CONVERSATION_CHARS: usize = 32;

/// Identity of a request that its client repeats: the same key, agent and id are the same event.
pub(crate) struct RequestIdentity {
    surface: &'static str,
    digest: String,
}

impl RequestIdentity {
    /// `id`: of the client.
    pub(crate) fn of(
        surface: &'static str,
        caller: &ScopedCaller,
        agent: AgentId,
        id: &str,
    ) -> Self {
        let identity = format!("{} {agent} {id}", caller.key);
        Self {
            surface,
            // A client's id may be of any length, and must not meet the ids of other events.
            digest: sha256_hex(identity.as_bytes()),
        }
    }

    /// Id of the event.
    pub(crate) fn event_id(&self) -> String {
        format!("{}-{}", self.surface, self.digest)
    }

    /// Conversation of a request that names none.
    pub(crate) fn conversation(&self) -> &str {
        &self.digest[..CONVERSATION_CHARS]
    }

    /// The run of an earlier request. `None`: there is none.
    pub(crate) async fn find_run(
        &self,
        state: &ApiState,
        caller: &ScopedCaller,
    ) -> ApiResult<Option<RunId>> {
        let (workspace, _) = caller.credential();
        let events = state.runs.store().events();
        let Some(record) = events.find_event(workspace, &self.event_id()).await? else {
            return Ok(None);
        };
        let accepted = serde_json::from_str::<EventAccepted>(&record.answer);
        let accepted = accepted.map_err(|_| StoreError::Corrupt {
            column: "events.answer",
            row: record.event_id,
        })?;
        Ok(accepted.run_id)
    }
}

/// A message for an agent.
pub(crate) struct FaceMessage {
    /// Name of the protocol, as the surface of the answer.
    pub(crate) surface: &'static str,
    /// Of a [`RequestIdentity`]. `None`: each request is a new event, or `Idempotency-Key` names it.
    pub(crate) event_id: Option<String>,
    pub(crate) bot_id: Option<String>,
    pub(crate) conversation: Option<EventConversation>,
    /// Id of the user at the client.
    pub(crate) actor: Option<String>,
    pub(crate) input: AgentInput,
    /// The client shows questions.
    pub(crate) takes_questions: bool,
    /// Members of the request that the answer repeats.
    pub(crate) data: JsonObject,
}

impl From<FaceMessage> for EventEnvelope {
    fn from(message: FaceMessage) -> Self {
        let actor = message.actor.map(|id| ActorContext {
            actor_type: "user".to_owned(),
            actor_id: Some(id),
            ..ActorContext::default()
        });
        Self {
            event_type: MESSAGE_RECEIVED.to_owned(),
            event_id: message.event_id,
            source: "api".to_owned(),
            source_event_type: Some(message.surface.to_owned()),
            event_time: None,
            locale: None,
            timezone: None,
            bot_id: message.bot_id,
            pipeline_id: None,
            conversation: message.conversation,
            actor,
            subject: None,
            input: Some(message.input),
            delivery: DeliveryContext {
                surface: message.surface.to_owned(),
                interactions: message.takes_questions.then(capabilities),
                ..DeliveryContext::default()
            },
            data: message.data,
            raw: None,
            raw_ref: None,
            adapter: None,
        }
    }
}

/// Starts a run of this agent, or joins the live one that absorbs the message. `pointer` maps a part of the event to
/// the member of the request.
pub(crate) async fn start_run(
    state: &ApiState,
    caller: &ScopedCaller,
    headers: &HeaderMap,
    agent: AgentId,
    message: FaceMessage,
    files: &ExtractedFiles,
    pointer: fn(&str) -> &'static str,
) -> ApiResult<ContinuedRun> {
    let event = EventEnvelope::from(message);
    let mut faults = check_posted(&event);
    if !faults.is_empty() {
        // Pointers of the event mean nothing to the client.
        for fault in &mut faults {
            pointer(&fault.pointer).clone_into(&mut fault.pointer);
        }
        return Err(ApiError::faults(&faults));
    }
    let (key, trace) = (idempotency_key(headers)?, trace_header(headers));
    // The id of the protocol is the key of the request.
    let key = key.filter(|_| event.event_id.is_none());
    let sender = caller.sender();
    let intake = &state.runs.intake;
    // The name of the model has chosen the agent, so no filter decides.
    let accepted = intake
        .accept_for(Some(agent), sender, event, &files.files, key, trace)
        .await?;
    let gone = || ApiError::from(IntakeError::AgentGone);
    Ok(ContinuedRun {
        run: accepted.answer.run_id.ok_or_else(gone)?,
        after: accepted.answer.last_sequence.unwrap_or(0),
    })
}

/// Submits answers in order. Returns the run of the last one.
pub(crate) async fn submit_answers(
    state: &ApiState,
    caller: &ScopedCaller,
    answers: Vec<AnswerOutput>,
) -> ApiResult<Option<ContinuedRun>> {
    let mut continued = None;
    for answer in answers {
        let AnswerOutput {
            question,
            action_id,
            values,
        } = answer;
        let run = answer_with_key(state, caller, &question, action_id, values).await?;
        // A response follows one run; that of the last answer has all of them.
        continued = Some(run);
    }
    Ok(continued)
}
