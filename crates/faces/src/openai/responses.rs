//! Responses: a run, or its part up to a question that it waits for, with numbered events.

mod id;
mod items;
mod request;
mod writer;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use domain::run::Run;
use http::{HeaderMap, StatusCode};
use protocol::error::ErrorBody;
use protocol::event::{EventConversation, EventEnvelope};
use serde::Deserialize;
use serde_json::{Value, json};
use store::{StoreError, sha256_hex};
use uuid::Uuid;

use super::{echoed_data, refused};
use crate::agent_runs::cancel_run;
use crate::agents::find_agent;
use crate::body::FaceBody;
use crate::follow::{FaceWriter as _, Follower, name_run, tokens_of};
use crate::input::RequestTurn;
use crate::ledger::stored_events;
use crate::start::{FaceMessage, start_run, submit_answers};
use client_api::client::interactions::ContinuedRun;
use id::ResponseId;
use request::{NamedConversation, ResponseFiles, ValidResponseRequest};
use web::auth::ScopedCaller;
use web::error::{ApiError, ApiResult};
use web::memory_budget::Sender;
use web::query::{PathOf, QueryOf, idempotency_key};
use web::run_pages::stream_rest;
use web::state::ApiState;
use writer::{EventsShown, ResponseFacts, ResponseWriter};

const SURFACE: &str = "openai.responses";

/// A request in OpenAI's format. Settings of models, such as `temperature`, are ignored: the agent has its own.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct AgentResponseRequest {
    /// Name of an agent.
    model: String,
    /// A text or a list of items. The last messages of the user become the event of the run.
    input: Value,
    stream: Option<bool>,
    /// True: the answer does not wait for the run.
    background: Option<bool>,
    /// Continues the conversation of this response.
    previous_response_id: Option<String>,
    /// Id of a conversation, or an object with it. Without both members the request begins a conversation.
    conversation: Option<Value>,
    /// Empty, or the function `ask_user`: questions of the run become calls of it.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
}

/// Answers a message by an agent: OpenAI's `POST /responses`.
///
/// The model is the name of an agent. The run continues if the client disconnects: read the response by its id, or
/// resume its stream there. With the same `Idempotency-Key`, a repeated request answers with the same run.
///
/// If the run waits for an answer to a question, the response ends with a call of `ask_user`. The output of the call
/// answers the question; the run continues in the response to that request.
#[utoipa::path(post, path = "/faces/openai/v1/responses", tag = "client", security(("api_key" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = AgentResponseRequest, responses(
    (status = 200, description = "A `response`, or with `stream` its events as server-sent events (`text/event-stream`)", body = Object,
        headers(("Runnel-Run-Id" = String, description = "The run's id"))),
    (status = 400, description = "The request is not valid, or continues an unknown response (`error.code`: previous_response_not_found)", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such agent for this key (`error.code`: model_not_found), or no such question", body = ErrorBody),
    (status = 409, description = "`details.reason`: idempotency_mismatch, run_active, already_submitted", body = ErrorBody),
    (status = 410, description = "The question has expired, or its run was cancelled", body = ErrorBody),
    (status = 413, description = "The request exceeds `limits.event_body_bytes` (16 MiB), or 1 MiB without files", body = ErrorBody),
    (status = 429, description = "A limit is reached (`details.reason`)", body = ErrorBody)))]
pub(crate) async fn create_agent_response(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    headers: HeaderMap,
    FaceBody {
        request: members,
        files,
        ..
    }: FaceBody<ResponseFiles>,
) -> ApiResult<Response> {
    let request = ValidResponseRequest::read(&members).map_err(refused)?;
    let (wants_stream, is_background) = (request.wants_stream, request.is_background);
    // Before anything is stored, so that a refused answer starts no run.
    let slot = state.stream_limit().enter(caller.key)?;
    let agent = find_agent(&state, &caller, &request.model).await?;
    let started = match request.turn {
        RequestTurn::Message(message) => {
            let is_new = request.conversation == NamedConversation::New;
            let posted_to = conversation(&state, &caller, &headers, &request.conversation).await?;
            let mut data =
                echoed_data(&members, &agent.spec.name, &request.instructions).map_err(refused)?;
            for name in ["previous_response_id", "background", "tools"] {
                let value = members.get(name);
                data.extend(value.map(|value| (name.to_owned(), value.clone())));
            }
            let message = FaceMessage {
                surface: SURFACE,
                event_id: None,
                bot_id: posted_to.bot_id,
                conversation: Some(posted_to.conversation),
                actor: request.actor,
                input: if is_new {
                    message.with_earlier()
                } else {
                    message.in_conversation()
                },
                takes_questions: request.takes_questions,
                data,
            };
            start_run(
                &state, &caller, &headers, agent.id, message, &files, member_of,
            )
            .await?
        }
        RequestTurn::Answers(answers) => {
            let continued = submit_answers(&state, &caller, answers).await?;
            continued.ok_or_else(|| ApiError::invalid("/input", "must end with a message"))?
        }
    };
    let ContinuedRun { run, after } = started;
    let id = ResponseId { run, after };
    let shown = if wants_stream {
        EventsShown::All
    } else {
        EventsShown::Nothing
    };
    let (run, writer) = writer_of(&state, &caller, id, shown).await?;
    let mut response = if wants_stream {
        Follower::new(&state, &caller, &started, slot, writer).stream()
    } else if is_background {
        Json(snapshot(&state, &caller, &run, id, writer).await?).into_response()
    } else {
        let follower = Follower::new(&state, &caller, &started, slot, writer);
        let (writer, tokens) = follower.complete().await?;
        Json(writer.response(run.status, tokens)).into_response()
    };
    name_run(response.headers_mut(), run.id);
    Ok(response)
}

/// Members of the request that a part of the event comes from.
fn member_of(pointer: &str) -> &'static str {
    match pointer {
        "/conversation/conversation_id" => "/conversation",
        "/actor/actor_id" => "/user",
        "/data" => "/instructions",
        _ => "/input",
    }
}

/// Conversation of an event.
struct PostedConversation {
    bot_id: Option<String>,
    conversation: EventConversation,
}

async fn conversation(
    state: &ApiState,
    caller: &ScopedCaller,
    headers: &HeaderMap,
    named: &NamedConversation,
) -> ApiResult<PostedConversation> {
    let id = match named {
        NamedConversation::Of(previous) => {
            return previous_conversation(state, caller, previous).await;
        }
        NamedConversation::Id(id) => id.clone(),
        NamedConversation::New => match idempotency_key(headers)? {
            // A repeated request must be equal to the first one.
            Some(key) => {
                let digest = sha256_hex(format!("{}:{key}", caller.key).as_bytes());
                format!("conv_{}", &digest[..32])
            }
            None => format!("conv_{}", Uuid::now_v7().simple()),
        },
    };
    Ok(PostedConversation {
        bot_id: None,
        conversation: EventConversation {
            conversation_id: Some(id),
            ..EventConversation::default()
        },
    })
}

/// The conversation of an earlier response.
async fn previous_conversation(
    state: &ApiState,
    caller: &ScopedCaller,
    previous: &str,
) -> ApiResult<PostedConversation> {
    let unknown = |message: &str| {
        ApiError::invalid("/previous_response_id", message)
            .with("reason", json!("previous_response_not_found"))
    };
    let absent = || unknown("names no response that this key reaches");
    let previous = ResponseId::parse(previous).ok_or_else(absent)?;
    let found = caller.find_run(state, previous.run).await;
    let run = found.map_err(|error| match error.status {
        // Here the fault is in the body, and not in the path.
        StatusCode::NOT_FOUND => absent(),
        _ => error,
    })?;
    let event = event_of(state, &run).await?;
    let posted_to = event.and_then(|event| {
        Some(PostedConversation {
            bot_id: event.bot_id,
            conversation: event.conversation?,
        })
    });
    posted_to.ok_or_else(|| unknown("names the run of an event without a conversation"))
}

/// The event of a run. `None`: retention has deleted it.
async fn event_of(state: &ApiState, run: &Run) -> ApiResult<Option<EventEnvelope>> {
    let events = state.runs.store().events();
    let record = events.find_event(&run.workspace, &run.event_id).await?;
    let read = |envelope: String| serde_json::from_str(&envelope);
    let event = record.map(|record| read(record.envelope)).transpose();
    let corrupt = |_| StoreError::Corrupt {
        column: "events.envelope",
        row: run.event_id.clone(),
    };
    Ok(event.map_err(corrupt)?)
}

/// The run of a response that the caller reaches, and the writer of the response.
async fn writer_of(
    state: &ApiState,
    caller: &ScopedCaller,
    id: ResponseId,
    shown: EventsShown,
) -> ApiResult<(Run, ResponseWriter)> {
    let run = caller.find_run(state, id.run).await?;
    let event = event_of(state, &run).await?;
    let agents = state.runs.store().agents();
    let agent = agents.find_agent(&run.workspace, run.agent_id).await?;
    let model = agent.map_or_else(|| run.agent_id.to_string(), |agent| agent.spec.name);
    let conversation = event.as_ref().and_then(|event| event.conversation.clone());
    let facts = ResponseFacts {
        id,
        created_at: run.created_at.div_euclid(1000),
        model,
        conversation: conversation.and_then(|conversation| conversation.conversation_id),
        request: event.map(|event| event.data).unwrap_or_default(),
    };
    Ok((run, ResponseWriter::new(facts, shown)))
}

/// The response from the events that are stored now.
async fn snapshot(
    state: &ApiState,
    caller: &ScopedCaller,
    run: &Run,
    id: ResponseId,
    mut writer: ResponseWriter,
) -> ApiResult<Value> {
    let mut memory = caller.answer.permit_for_stream(Sender::Key(caller.key));
    let mut after = id.after;
    writer.begin();
    loop {
        let events = stored_events(state, run.id, after).await?;
        let Some(last) = events.last() else { break };
        after = last.sequence;
        for event in &events {
            if !writer.has_ended() {
                writer.write(event);
            }
        }
        // After each page: a ledger may be larger than the budget.
        memory.grow_to(writer.bytes())?;
        if writer.has_ended() {
            break;
        }
    }
    // The accounting of a live run has no calls in progress.
    let tokens = tokens_of(state, run.id).await?;
    Ok(writer.response(run.status, tokens))
}

/// Form of the answer.
#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseQuery {
    /// True: the answer is the event stream, from its begin on, up to the end of the response.
    #[serde(default)]
    stream: bool,
    /// Only events after this `sequence_number`. Needs `stream`.
    starting_after: Option<u64>,
}

/// Retrieves a response, or resumes its stream: OpenAI's `GET /responses/{response_id}`.
///
/// The events of a resumed stream equal those of the first one, with the same `sequence_number`, on every replica and
/// as long as the ledger has them.
#[utoipa::path(get, path = "/faces/openai/v1/responses/{response_id}", tag = "client", security(("api_key" = [])),
    params(("response_id" = String, Path, description = "The `id` of a response"), ResponseQuery), responses(
    (status = 200, description = "The `response`, or with `stream` its events as server-sent events (`text/event-stream`)", body = Object),
    (status = 400, description = "A parameter is not valid", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such response", body = ErrorBody),
    (status = 410, description = "Retention has deleted its events; read the run at `details.snapshot_url`", body = ErrorBody),
    (status = 429, description = "A limit is reached. `details.reason`: key_streams, answer_bytes_of_sender, answer_bytes", body = ErrorBody)))]
pub(crate) async fn get_agent_response(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
    QueryOf(query): QueryOf<ResponseQuery>,
) -> ApiResult<Response> {
    let id = parse_id(&id)?;
    let shown = match (query.stream, query.starting_after) {
        (true, Some(seen)) => EventsShown::After(seen),
        (true, None) => EventsShown::All,
        (false, None) => EventsShown::Nothing,
        (false, Some(_)) => {
            let message = "`starting_after` needs `stream=true`";
            return Err(ApiError::invalid_argument(message));
        }
    };
    let (run, writer) = writer_of(&state, &caller, id, shown).await?;
    // Fails if the ledger no longer has the events.
    stream_rest(&run, id.after)?;
    if query.stream {
        let slot = state.stream_limit().enter(caller.key)?;
        let ResponseId { run, after } = id;
        let from = ContinuedRun { run, after };
        return Ok(Follower::new(&state, &caller, &from, slot, writer).stream());
    }
    let response = snapshot(&state, &caller, &run, id, writer).await?;
    Ok(Json(response).into_response())
}

/// Cancels the run of a response: OpenAI's `POST /responses/{response_id}/cancel`.
///
/// The status becomes `cancelled` with the end of the run, which its runner may delay by the grace period. Repeated
/// requests have no effect.
#[utoipa::path(post, path = "/faces/openai/v1/responses/{response_id}/cancel", tag = "client", security(("api_key" = [])),
    params(("response_id" = String, Path, description = "The `id` of a response")), responses(
    (status = 200, description = "The `response`", body = Object),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 404, description = "No such response", body = ErrorBody),
    (status = 410, description = "Retention has deleted its events", body = ErrorBody)))]
pub(crate) async fn cancel_agent_response(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(id): PathOf<String>,
) -> ApiResult<Json<Value>> {
    let id = parse_id(&id)?;
    let (run, writer) = writer_of(&state, &caller, id, EventsShown::Nothing).await?;
    stream_rest(&run, id.after)?;
    cancel_run(&state, &caller, run.id).await?;
    Ok(Json(snapshot(&state, &caller, &run, id, writer).await?))
}

/// A malformed id is as unknown as any other.
fn parse_id(id: &str) -> ApiResult<ResponseId> {
    ResponseId::parse(id).ok_or_else(|| ApiError::not_found("response", id))
}
