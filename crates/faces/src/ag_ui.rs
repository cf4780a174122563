//! AG-UI 1.0: a thread is a conversation, and a run of the client is a run of the agent up to its end or question.

mod input;
mod resume;
mod writer;

use axum::extract::State;
use axum::middleware::map_response;
use axum::response::Response;
use domain::large_text::PathStep::{self, Each, Member};
use http::{HeaderMap, StatusCode};
use protocol::error::AgentApiError;
use protocol::event::EventConversation;
use protocol::id::AgentId;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::input::{AgUiInput, AgUiTurn};
use self::resume::resume_run;
use self::writer::{AgUiHead, AgUiWriter};
use crate::agents::{agent_of_path, public_url};
use crate::body::{FaceBody, FilePaths};
use crate::follow::{Follower, name_run};
use crate::frame_position::FramePosition;
use crate::input::LastUserMessage;
use crate::start::{FaceMessage, RequestIdentity, start_run};
use client_api::client::body_files::ExtractedFiles;
use client_api::client::interactions::ContinuedRun;
use web::auth::ScopedCaller;
use web::error::face::in_face_form;
use web::error::{ApiError, ApiResult};
use web::query::PathOf;
use web::run_pages::stream_rest;
use web::state::ApiState;

const SURFACE: &str = "ag-ui";
/// The version of AG-UI that this face serves.
const PROTOCOL_VERSION: &str = "1.0";

/// Routes of this protocol. Errors have the form of its events.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(run_ag_ui_agent))
        .layer(map_response(in_event_form))
}

/// AG-UI's `RunAgentInput`. Unknown members are ignored.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
#[schema(rename_all = "camelCase")]
pub(crate) struct AgUiRunInput {
    /// The conversation.
    thread_id: String,
    /// Of the client: the same id is the same run.
    run_id: String,
    /// The last messages of the user become the event of the run.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
    /// Answers to interrupts.
    #[schema(value_type = Option<Vec<Object>>)]
    resume: Option<Value>,
    /// `data.state` of the event.
    #[schema(value_type = Option<Object>)]
    state: Option<Value>,
    /// `data.tools` of the event.
    #[schema(value_type = Option<Vec<Object>>)]
    tools: Option<Value>,
    /// `data.context` of the event.
    #[schema(value_type = Option<Vec<Object>>)]
    context: Option<Value>,
    /// `data.forwarded_props` of the event.
    #[schema(value_type = Option<Object>)]
    forwarded_props: Option<Value>,
}

/// Paths of files in the messages of an input.
pub(crate) struct AgUiFiles;

impl FilePaths for AgUiFiles {
    fn file_paths() -> Vec<Vec<PathStep>> {
        let part = [Member("messages"), Each, Member("content"), Each];
        vec![[&part[..], &[Member("source"), Member("value")]].concat()]
    }
}

/// Runs an agent for a user interface: AG-UI 1.0.
///
/// The body is a `RunAgentInput`, the answer a stream of AG-UI events. `threadId` names the conversation, so earlier
/// messages of the input are ignored. A repeated `runId` of the same key gets the same run; with `Last-Event-ID`, only
/// the events after that one. Questions of the run are interrupts, and `resume` has their answers.
///
/// The run continues if the client disconnects.
#[utoipa::path(post, path = "/faces/ag-ui/{agent}", tag = "client", security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name or id of the agent, percent-encoded"),
        ("Last-Event-ID" = Option<String>, Header, description = "The id of the last frame of a cut stream with this `runId`"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = AgUiRunInput, responses(
    (status = 200, description = "AG-UI events as server-sent events", body = String, content_type = "text/event-stream",
        headers(("Runnel-Run-Id" = String, description = "The run's id"))),
    (status = 400, description = "The input is not valid; `metadata.details.pointer` locates the fault", body = Object),
    (status = 401, description = "No valid API key", body = Object),
    (status = 403, description = "The role of the key, `Host` or `Origin` is not allowed", body = Object),
    (status = 404, description = "No such agent for this key", body = Object),
    (status = 408, description = "The body was not complete in time", body = Object),
    (status = 409, description = "`metadata.details.reason`: idempotency_mismatch, run_active, already_submitted", body = Object),
    (status = 410, description = "The question has expired or its run was cancelled, or retention has deleted the events", body = Object),
    (status = 413, description = "The request exceeds `limits.event_body_bytes` (16 MiB), or 1 MiB without files", body = Object),
    (status = 415, description = "The body is compressed: send it without `Content-Encoding`", body = Object),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = Object),
    (status = 500, description = "The gateway failed; see its log", body = Object),
    (status = 503, description = "The database does not respond; retry", body = Object)))]
pub(crate) async fn run_ag_ui_agent(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(agent): PathOf<String>,
    headers: HeaderMap,
    FaceBody { request, files, .. }: FaceBody<AgUiFiles>,
) -> ApiResult<Response> {
    let agent = agent_of_path(&state, &caller, &agent).await?;
    let input = AgUiInput::read(&request).map_err(|fault| ApiError::faults(&[fault]))?;
    let seen = FramePosition::of_header(&headers)?;
    // Before anything is stored, so that a refused stream starts no run.
    let slot = state.stream_limit().enter(caller.key)?;
    let call = AgUiRequest {
        state: &state,
        caller: &caller,
        agent: agent.id,
        headers: &headers,
        files: &files,
    };
    let (thread, run_id) = (input.thread_id, input.run_id);
    let started = match input.turn {
        AgUiTurn::Answers(entries) => resume_run(&call, &thread, entries).await?,
        AgUiTurn::Message(message) => {
            let identity = RequestIdentity::of(SURFACE, &caller, agent.id, &run_id);
            if seen.is_some() && identity.find_run(&state, &caller).await?.is_none() {
                let message = "there is no run of this `runId` for this key; leave `Last-Event-ID` out to start it";
                return Err(ApiError::new(
                    StatusCode::NOT_FOUND,
                    "not_found",
                    message.to_owned(),
                ));
            }
            call.start(&identity, &thread, message, input.data).await?
        }
    };
    let run = caller.find_run(&state, started.run).await?;
    if let Some(seen) = seen {
        seen.check(&run, started.after)?;
    }
    // Fails if the ledger no longer has the events. The end of a run has a frame of its own.
    let read = seen.map_or(started.after, |seen| seen.sequence.saturating_sub(1));
    stream_rest(&run, read.max(started.after))?;
    let head = AgUiHead {
        run: run.id,
        thread,
        run_id,
        root: public_url(&state).to_owned(),
        after: started.after,
    };
    let writer = AgUiWriter::new(head, seen);
    let mut response = Follower::new(&state, &caller, &started, slot, writer).stream();
    name_run(response.headers_mut(), run.id);
    Ok(response)
}

/// One request for an agent.
struct AgUiRequest<'a> {
    state: &'a ApiState,
    caller: &'a ScopedCaller,
    agent: AgentId,
    headers: &'a HeaderMap,
    files: &'a ExtractedFiles,
}

impl AgUiRequest<'_> {
    async fn start(
        &self,
        identity: &RequestIdentity,
        thread: &str,
        message: LastUserMessage,
        data: protocol::JsonObject,
    ) -> ApiResult<ContinuedRun> {
        let message = FaceMessage {
            surface: SURFACE,
            event_id: Some(identity.event_id()),
            bot_id: None,
            conversation: Some(EventConversation {
                conversation_id: Some(thread.to_owned()),
                ..EventConversation::default()
            }),
            actor: None,
            input: message.in_conversation(),
            takes_questions: true,
            data,
        };
        let (state, caller) = (self.state, self.caller);
        let started = start_run(
            state,
            caller,
            self.headers,
            self.agent,
            message,
            self.files,
            member_of,
        );
        started.await
    }
}

/// The member of the input that a part of the event comes from.
fn member_of(pointer: &str) -> &'static str {
    match pointer {
        "/conversation/conversation_id" => "/threadId",
        "/data" => "/state",
        _ => "/messages",
    }
}

/// Converts errors to the error event of AG-UI.
async fn in_event_form(response: Response) -> Response {
    in_face_form(response, |status, error| (status, error_event(error)))
}

/// A `RUN_ERROR`.
fn error_event(error: &AgentApiError) -> Value {
    json!({"type": "RUN_ERROR", "message": error.message, "code": error.code,
        "metadata": {"retryable": error.retryable, "details": error.details}})
}
