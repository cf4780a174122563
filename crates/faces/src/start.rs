//! Start of a run from a message, and answers to its questions.

use http::HeaderMap;
use protocol::JsonObject;
use protocol::context::{ActorContext, AgentInput, DeliveryContext};
use protocol::event::{EventConversation, EventEnvelope, MESSAGE_RECEIVED};
use protocol::id::AgentId;

use crate::questions::{AnswerOutput, capabilities};
use client_api::client::body_files::ExtractedFiles;
use client_api::client::interactions::{ContinuedRun, answer_with_key};
use domain::event::check_posted;
use runs::intake::IntakeError;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::query::{idempotency_key, trace_header};
use web::state::ApiState;

/// A message for an agent.
pub(crate) struct FaceMessage {
    /// Name of the protocol, as the surface of the answer.
    pub(crate) surface: &'static str,
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
            event_id: None,
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
