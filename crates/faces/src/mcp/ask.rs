//! The tool `ask`: a message or an answer, the progress of its run, and the result.

use std::pin::pin;

use domain::run::Run;
use futures_util::future::{Either, select};
use protocol::context::AgentInput;
use protocol::event::EventConversation;
use rmcp::RoleServer;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock,
    ProgressNotificationParam, ProtocolVersion,
};
use rmcp::service::RequestContext;
use serde::Deserialize;
use serde_json::{Value, json};

use super::elicitation::{input_required, submit_response, takes_forms};
use super::{AgentMcp, MAX_CONVERSATION_BYTES, SURFACE};
use crate::agent_runs::{cancel_run, conversation_of, open_questions_in, request_of};
use crate::answer::{GivenAnswer, answer_schema};
use crate::answer_text::{AnswerText, AnswerTextEnd};
use crate::follow::Follower;
use crate::questions::OpenQuestion;
use crate::start::{FaceMessage, RequestIdentity, start_run};
use client_api::client::body_files::ExtractedFiles;
use client_api::client::interactions::{ContinuedRun, answer_with_key};
use protocol::interaction::InteractionRequest;
use web::error::{ApiError, ApiResult};
use web::mcp::read_arguments;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AskArguments {
    message: String,
    #[serde(default)]
    conversation: Option<String>,
}

impl AgentMcp {
    /// Posts the message or the answer, and waits for the end or the question of the run.
    pub(super) async fn ask(
        &self,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> ApiResult<CallToolResponse> {
        let arguments: AskArguments = read_arguments(&request.arguments.unwrap_or_default())?;
        if arguments.message.is_empty() {
            return Err(ApiError::invalid("/message", "must not be empty"));
        }
        let (state, caller) = (&self.state, &self.caller);
        // Before anything is stored, so that a refused answer starts no run.
        let slot = state.stream_limit().enter(caller.key)?;
        let identity = self.call_identity(&json!(context.id));
        let (started, answers_form) = match (request.request_state, request.input_responses) {
            (Some(question), Some(responses)) => {
                let continued = submit_response(self, &question, responses).await?;
                (continued, true)
            }
            _ => (self.start(arguments, &identity).await?, false),
        };
        let run = caller.find_run(state, started.run).await?;
        let follower = Follower::new(state, caller, &started, slot, AnswerText::default());
        let followed = pin!(follow(follower, context));
        let left = pin!(context.ct.cancelled());
        let answer = match select(followed, left).await {
            Either::Left((answer, _)) => answer?,
            Either::Right(_) => {
                // A run that absorbed the message has other clients.
                let is_own = answers_form || run.event_id == identity.event_id();
                // A gateway that stops closes connections, too, and cancels nothing.
                let stops = state.runs.stopping().is_cancelled();
                if is_own && is_stateless(context) && !stops {
                    cancel_run(state, caller, run.id).await?;
                }
                return Err(ApiError::unavailable("the client has closed the request"));
            }
        };
        let conversation = conversation_of(state, &run).await?;
        Ok(response_of(&run, conversation, answer, context))
    }

    async fn start(
        &self,
        arguments: AskArguments,
        identity: &RequestIdentity,
    ) -> ApiResult<ContinuedRun> {
        let AskArguments {
            message,
            conversation,
        } = arguments;
        let (state, caller, headers) = (&self.state, &self.caller, &self.headers);
        // Other ids are refused with the event, and no question has them.
        let is_id = |id: &&str| (1..=MAX_CONVERSATION_BYTES).contains(&id.len());
        if let Some(conversation) = conversation.as_deref().filter(is_id)
            // A repeated message is no answer to the question of its own run.
            && identity.find_run(state, caller).await?.is_none()
            && let Some(continued) = self.answer(conversation, &message).await?
        {
            return Ok(continued);
        }
        let conversation = conversation.unwrap_or_else(|| identity.conversation().to_owned());
        let event = FaceMessage {
            surface: SURFACE,
            event_id: Some(identity.event_id()),
            bot_id: None,
            conversation: Some(EventConversation {
                conversation_id: Some(conversation),
                ..EventConversation::default()
            }),
            actor: None,
            input: AgentInput {
                text: Some(message),
                ..AgentInput::default()
            },
            takes_questions: true,
            data: protocol::JsonObject::new(),
        };
        let no_files = ExtractedFiles::default();
        let (agent, pointer) = (self.agent_id(), member_of);
        start_run(state, caller, headers, agent, event, &no_files, pointer).await
    }

    /// Submits the message if it answers a question of the conversation. `None`: it is the next message.
    async fn answer(&self, conversation: &str, message: &str) -> ApiResult<Option<ContinuedRun>> {
        let (state, caller) = (&self.state, &self.caller);
        let questions = open_questions_in(state, caller, self.agent_id(), conversation).await?;
        let data = serde_json::from_str::<Value>(message).ok();
        let data = data.and_then(|value| GivenAnswer::of_value(&value));
        let named = data.as_ref().and_then(|answer| answer.question.as_deref());
        let mut questions = questions.iter();
        // The newest question is the one that the last result shows.
        let record = questions.find(|one| named.is_none_or(|named| named == one.id));
        let Some(record) = record else {
            return match named {
                Some(_) => Err(ApiError::invalid(
                    "/message",
                    "names no open question of the conversation",
                )),
                None => Ok(None),
            };
        };
        let given = match data {
            Some(given) => given,
            // The run has ended, and any text would answer a question for a text.
            None if !record.is_awaited => return Ok(None),
            None => {
                let given = GivenAnswer::of_text(message, &request_of(record)?);
                given.ok_or_else(|| {
                    let message = format!(
                        "must answer the open question: an action, the value of its only field, or JSON like {}",
                        GivenAnswer::FORM
                    );
                    ApiError::invalid("/message", message)
                })?
            }
        };
        let GivenAnswer {
            action_id, values, ..
        } = given;
        let continued = answer_with_key(state, caller, &record.id, action_id, values).await?;
        Ok(Some(continued))
    }
}

/// True for versions without a handshake. In them a disconnect is the cancel of the request.
pub(super) fn is_stateless(context: &RequestContext<RoleServer>) -> bool {
    // Versions are dates.
    let version = context.protocol_version();
    version.is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}

/// Reads the run up to its end or question, and sends its text as progress.
async fn follow(
    mut follower: Follower<AnswerText>,
    context: &RequestContext<RoleServer>,
) -> ApiResult<AnswerText> {
    let token = context.meta.get_progress_token();
    let mut count = 0.0;
    while let Some(text) = follower.next_frames().await? {
        let Some(token) = &token else {
            continue;
        };
        count += 1.0;
        let progress = ProgressNotificationParam::new(token.clone(), count);
        // Empty for events without text and for keep-alives, which also prove that the run works.
        let progress = match text.as_str() {
            "" => progress,
            text => progress.with_message(text),
        };
        // A client that left cancels the call by its disconnect.
        let _ = context.peer.notify_progress(progress).await;
    }
    Ok(follower.into_writer())
}

fn response_of(
    run: &Run,
    conversation: Option<String>,
    answer: AnswerText,
    context: &RequestContext<RoleServer>,
) -> CallToolResponse {
    let AnswerText {
        mut text,
        mut questions,
        end,
        ..
    } = answer;
    let mut structured = json!({"run_id": run.id, "conversation_id": conversation});
    let status = match end {
        Some(AnswerTextEnd::Failed { code, message }) => {
            structured["status"] = json!(if code == "cancelled" {
                "cancelled"
            } else {
                "failed"
            });
            structured["error"] = json!({"code": code, "message": message});
            let text = ContentBlock::text(format!("{code}: {message}"));
            let mut result = CallToolResult::error(vec![text]);
            result.structured_content = Some(structured);
            return result.into();
        }
        // The run continues; its text is too long for an answer.
        Some(AnswerTextEnd::Cut) => "running",
        _ => "completed",
    };
    structured["status"] = json!(status);
    if let Some(question) = questions.pop() {
        if takes_forms(context)
            && let Some(required) = input_required(&question, &text)
        {
            return required.into();
        }
        structured["status"] = json!("input_required");
        structured["question"] = json!({"id": question.id});
        let conversation = conversation.unwrap_or_default();
        if !text.is_empty() {
            text += "\n\n";
        }
        text += &instructions(&question, &conversation);
    }
    let mut result = CallToolResult::success(vec![ContentBlock::text(text)]);
    result.structured_content = Some(structured);
    result.into()
}

/// A question as text, and the way to answer it.
fn instructions(question: &OpenQuestion, conversation: &str) -> String {
    let request = serde_json::from_str::<InteractionRequest>(&question.arguments);
    let Ok(request) = request else {
        return question.arguments.clone();
    };
    let schema = answer_schema(&request);
    let short = if question.is_awaited {
        ", or a text that is an action or the value of the only field"
    } else {
        ""
    };
    format!(
        "{}\n\nThe agent waits for this answer. To give it, call ask with the conversation {conversation:?}. The \
         message is a JSON text of this schema{short}: {schema}",
        request.fallback_text
    )
}

/// The argument that a part of the event comes from.
fn member_of(pointer: &str) -> &'static str {
    match pointer {
        "/conversation/conversation_id" => "/conversation",
        _ => "/message",
    }
}
