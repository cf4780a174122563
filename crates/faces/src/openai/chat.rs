//! Chat completions: the last message of the user becomes an event, and the text of the run the completion.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use domain::large_text::PathStep::{self, Each, Member};
use http::HeaderMap;
use protocol::admin::Fault;
use protocol::error::ErrorBody;
use protocol::event::EventConversation;
use serde_json::Value;

use super::chat_writer::{ChatHead, ChatWriter};
use super::parts::read_content;
use super::{actor_of, check_text_format, echoed_data, refused};
use crate::agents::find_agent;
use crate::body::{FaceBody, FilePaths, RequestMembers};
use crate::follow::{Follower, name_run};
use crate::input::{LastUserMessage, RequestTurn, TurnReader};
use crate::questions::{AnswerOutput, declares_ask_user};
use crate::start::{FaceMessage, start_run, submit_answers};
use client_api::client::interactions::ContinuedRun;
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::query::single_header;
use web::state::ApiState;

const SURFACE: &str = "openai.chat";
const CONVERSATION: &str = "runnel-conversation-id";

/// A request in OpenAI's format. Settings of models, such as `temperature`, are ignored: the agent has its own.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct AgentChatRequest {
    /// Name of an agent.
    model: String,
    /// The last messages of the user become the event of the run.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
    stream: Option<bool>,
    /// Id of the user, which becomes the actor of the event.
    user: Option<String>,
    /// `conversation_id` names the conversation. All members are in `data.metadata` of the event.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    /// Empty, or the function `ask_user`: questions of the run become calls of it.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
}

/// Paths of files in a chat completion request.
pub(crate) struct ChatFiles;

impl FilePaths for ChatFiles {
    fn file_paths() -> Vec<Vec<PathStep>> {
        let part = [Member("messages"), Each, Member("content"), Each];
        let files: [&[PathStep]; 3] = [
            &[Member("image_url"), Member("url")],
            &[Member("file"), Member("file_data")],
            &[Member("input_audio"), Member("data")],
        ];
        files.map(|file| [&part[..], file].concat()).into()
    }
}

/// Answers a message by an agent: OpenAI's `POST /chat/completions`.
///
/// The model is the name of an agent. The header `Runnel-Conversation-Id`, or else `metadata.conversation_id`, names
/// the conversation: then earlier messages of the request are ignored, because the gateway has them. Without a
/// conversation they are part of the event.
///
/// The run continues if the client disconnects. With the same `Idempotency-Key`, a repeated request answers with the
/// same run.
#[utoipa::path(post, path = "/faces/openai/v1/chat/completions", tag = "client", security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters"),
        ("Runnel-Conversation-Id" = Option<String>, Header, description = "The conversation; 1 to 255 bytes"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = AgentChatRequest, responses(
    (status = 200, description = "A `chat.completion`, or with `stream` its chunks as server-sent events (`text/event-stream`)", body = Object,
        headers(("Runnel-Run-Id" = String, description = "The run's id"))),
    (status = 400, description = "The request is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent for this key (`error.code`: model_not_found), or no such question", body = ErrorBody),
    (status = 409, description = "The run was cancelled; or `details.reason`: idempotency_mismatch, run_active, already_submitted", body = ErrorBody),
    (status = 410, description = "The question has expired, or its run was cancelled", body = ErrorBody),
    (status = 413, description = "The request exceeds `limits.event_body_bytes` (16 MiB), or 1 MiB without files", body = ErrorBody),
    (status = 429, description = "A limit is reached (`details.reason`)", body = ErrorBody),
    (status = 502, description = "The run failed (`details.code`)", body = ErrorBody),
    (status = 504, description = "The run was past its deadline", body = ErrorBody)))]
pub(crate) async fn complete_agent_chat(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    FaceBody { request, files, .. }: FaceBody<ChatFiles>,
) -> ApiResult<Response> {
    let chat = ChatRequest::read(&request, &headers)?;
    let agent = find_agent(&state, &caller, &chat.model).await?;
    // Before anything is stored, so that a refused answer starts no run.
    let slot = state.stream_limit().enter(caller.key)?;
    let (wants_stream, wants_usage) = (chat.wants_stream, chat.wants_usage);
    let started = match chat.turn {
        RequestTurn::Message(message) => {
            let message = FaceMessage {
                surface: SURFACE,
                event_id: None,
                bot_id: None,
                input: input_of(message, chat.conversation.is_some()),
                conversation: chat.conversation.map(|id| EventConversation {
                    conversation_id: Some(id),
                    ..EventConversation::default()
                }),
                actor: chat.actor,
                takes_questions: chat.takes_questions,
                data: echoed_data(&request, &agent.spec.name, &chat.instructions)
                    .map_err(refused)?,
            };
            start_run(
                &state, &caller, &headers, agent.id, message, &files, member_of,
            )
            .await?
        }
        RequestTurn::Answers(answers) => answered(&state, &caller, answers).await?,
    };
    let head = ChatHead {
        run: started.run,
        created: state.runs.clock().now_seconds(),
        model: agent.spec.name,
        wants_usage,
    };
    let writer = ChatWriter::new(head);
    let follower = Follower::new(&state, &caller, &started, slot, writer);
    let mut response = if wants_stream {
        follower.stream()
    } else {
        let (writer, tokens) = follower.complete().await?;
        Json(writer.completion(tokens)?).into_response()
    };
    name_run(response.headers_mut(), started.run);
    Ok(response)
}

fn input_of(message: LastUserMessage, has_conversation: bool) -> protocol::context::AgentInput {
    if has_conversation {
        message.in_conversation()
    } else {
        message.with_earlier()
    }
}

async fn answered(
    state: &ApiState,
    caller: &ScopedCaller,
    answers: Vec<AnswerOutput>,
) -> ApiResult<ContinuedRun> {
    let continued = submit_answers(state, caller, answers).await?;
    continued.ok_or_else(|| ApiError::invalid("/messages", "must end with a message or an answer"))
}

/// The member of the request that a part of the event comes from.
fn member_of(pointer: &str) -> &'static str {
    match pointer {
        "/conversation/conversation_id" => "/metadata/conversation_id",
        "/actor/actor_id" => "/user",
        "/data" => "/metadata",
        _ => "/messages",
    }
}

/// A valid request.
struct ChatRequest {
    model: String,
    turn: RequestTurn,
    instructions: String,
    conversation: Option<String>,
    actor: Option<String>,
    takes_questions: bool,
    wants_stream: bool,
    wants_usage: bool,
}

impl ChatRequest {
    fn read(request: &RequestMembers, headers: &HeaderMap) -> ApiResult<Self> {
        let header = single_header(headers, CONVERSATION)?;
        Self::of_members(request, header).map_err(refused)
    }

    fn of_members(request: &RequestMembers, header: Option<&str>) -> Result<Self, Fault> {
        let model = request.required_text("model")?.to_owned();
        // Clients that ask for several answers read them by index.
        if request.get("n").is_some_and(|n| *n != 1) {
            return Err(Fault::new("/n", "must be 1: a run has one answer"));
        }
        if !request.list("functions")?.is_empty() {
            let message = "must be absent: the agent has its own tools";
            return Err(Fault::new("/functions", message));
        }
        check_text_format(request.get("response_format"), "/response_format")?;
        let tools = request.list("tools")?;
        let takes_questions = declares_ask_user(tools, |tool| &tool["function"]["name"])?;
        let options = request.object("stream_options")?;
        let wants_usage = options.and_then(|options| options.get("include_usage")?.as_bool());
        let metadata = request.object("metadata")?;
        let named = metadata.and_then(|metadata| metadata.get("conversation_id"));
        let named = match named {
            None | Some(Value::Null) => None,
            Some(Value::String(id)) => Some(id.as_str()),
            Some(_) => return Err(Fault::new("/metadata/conversation_id", "must be a text")),
        };
        let (instructions, turn) = read_messages(request.list("messages")?)?;
        Ok(Self {
            model,
            turn,
            instructions,
            // The header wins: a proxy sets it without reading bodies.
            conversation: header.or(named).map(str::to_owned),
            actor: actor_of(request)?,
            takes_questions,
            wants_stream: request.flag("stream")?,
            wants_usage: wants_usage.unwrap_or(false),
        })
    }
}

fn read_messages(messages: &[Value]) -> Result<(String, RequestTurn), Fault> {
    let mut reader = TurnReader::default();
    for (at, message) in messages.iter().enumerate() {
        let pointer = format!("/messages/{at}/content");
        let parts = read_content(&message["content"], &pointer)?;
        match message["role"].as_str().unwrap_or_default() {
            "system" | "developer" => reader.add_instructions(parts.text()),
            "user" => reader.add_user(parts),
            "assistant" => reader.add_assistant(&parts.text()),
            "tool" => {
                // An absent id is as unknown as any other.
                let call = message["tool_call_id"].as_str().unwrap_or_default();
                let answer = AnswerOutput::read(call.to_owned(), &parts.text(), &pointer)?;
                reader.add_answer(answer);
            }
            _ => {
                let message = "must be system, developer, user, assistant or tool";
                return Err(Fault::new(format!("/messages/{at}/role"), message));
            }
        }
    }
    reader.finish("/messages")
}
