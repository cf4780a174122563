//! The binding of HTTP with JSON: the same methods as of JSON-RPC, with paths.

use axum::extract::State;
use axum::middleware::map_response;
use axum::response::Response;
use domain::large_text::PathStep::{self, Each, Member};
use http::HeaderMap;
use protocol::JsonObject;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::binding::{A2aBinding, in_http_form};
use super::methods::A2aCall;
use super::rpc::{RpcMethod, RpcRequest, check_version};
use crate::agents::agent_of_path;
use crate::body::{FaceBody, FilePaths};
use client_api::client::body_files::ExtractedFiles;
use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::error::routing::no_route;
use web::query::PathOf;
use web::state::ApiState;

/// Routes of this binding. Errors are `google.rpc.Status`.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(send_a2a_message))
        .routes(routes!(stream_a2a_message))
        .routes(routes!(get_a2a_task, act_on_a2a_task))
        .layer(map_response(in_http_form))
}

/// A message for an agent, in A2A's JSON form.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct A2aSendRequest {
    #[schema(value_type = Object)]
    message: Value,
    #[schema(value_type = Option<Object>)]
    configuration: Option<Value>,
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
}

/// Paths of files in the message of a request.
pub(crate) struct A2aHttpFiles;

impl FilePaths for A2aHttpFiles {
    fn file_paths() -> Vec<Vec<PathStep>> {
        let parts = ["message", "parts"].map(Member);
        let files = ["raw", "url"].map(|name| [Each, Member(name)]);
        files.map(|file| [&parts[..], &file].concat()).into()
    }
}

/// Sends a message to an agent: `SendMessage` of A2A 1.0.
///
/// The answer is the task at its end or at its question; with `configuration.returnImmediately` at once. A repeated
/// `messageId` of the same key answers with the same task.
#[utoipa::path(post, path = "/faces/a2a/{agent}/message:send", tag = "client", security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name or id of the agent, percent-encoded"),
        ("A2A-Version" = Option<String>, Header, description = "`1.0`. Required: A2A reads an absent version as 0.3"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = A2aSendRequest, responses(
    (status = 200, description = "A `SendMessageResponse` with the task", body = Object,
        headers(("Runnel-Run-Id" = String, description = "The run's id, which is also the task's"))),
    (status = 400, description = "The request is not valid (`error.details`)", body = Object),
    (status = 401, description = "No valid API key", body = Object),
    (status = 403, description = "The role of the key, `Host` or `Origin` is not allowed", body = Object),
    (status = 404, description = "No such agent or task for this key", body = Object),
    (status = 408, description = "The body was not complete in time", body = Object),
    (status = 409, description = "The `messageId` has another content, or the conversation is busy", body = Object),
    (status = 410, description = "The question has expired, or its run was cancelled", body = Object),
    (status = 413, description = "The request exceeds `limits.event_body_bytes` (16 MiB), or 1 MiB without files", body = Object),
    (status = 415, description = "The body is compressed: send it without `Content-Encoding`", body = Object),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = Object),
    (status = 500, description = "The gateway failed; see its log", body = Object),
    (status = 503, description = "The database does not respond; retry", body = Object)))]
pub(crate) async fn send_a2a_message(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(agent): PathOf<String>,
    headers: HeaderMap,
    FaceBody { request, files, .. }: FaceBody<A2aHttpFiles>,
) -> ApiResult<Response> {
    let call = HttpCall {
        state: &state,
        caller: &caller,
        agent: &agent,
        headers: &headers,
        files: &files,
    };
    let params = request.members();
    call.answer(RpcMethod::SendMessage, params).await
}

/// Sends a message to an agent, and streams its task: `SendStreamingMessage` of A2A 1.0.
///
/// The task continues if the client disconnects: `tasks/{id}:subscribe` with `Last-Event-ID` continues its stream.
#[utoipa::path(post, path = "/faces/a2a/{agent}/message:stream", tag = "client", security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name or id of the agent, percent-encoded"),
        ("A2A-Version" = Option<String>, Header, description = "`1.0`. Required: A2A reads an absent version as 0.3"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = A2aSendRequest, responses(
    (status = 200, description = "`StreamResponse`s as server-sent events", body = String, content_type = "text/event-stream",
        headers(("Runnel-Run-Id" = String, description = "The run's id, which is also the task's"))),
    (status = 400, description = "The request is not valid (`error.details`)", body = Object),
    (status = 401, description = "No valid API key", body = Object),
    (status = 403, description = "The role of the key, `Host` or `Origin` is not allowed", body = Object),
    (status = 404, description = "No such agent or task for this key", body = Object),
    (status = 408, description = "The body was not complete in time", body = Object),
    (status = 409, description = "The `messageId` has another content, or the conversation is busy", body = Object),
    (status = 410, description = "The question has expired, or its run was cancelled", body = Object),
    (status = 413, description = "The request exceeds `limits.event_body_bytes` (16 MiB), or 1 MiB without files", body = Object),
    (status = 415, description = "The body is compressed: send it without `Content-Encoding`", body = Object),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = Object),
    (status = 500, description = "The gateway failed; see its log", body = Object),
    (status = 503, description = "The database does not respond; retry", body = Object)))]
pub(crate) async fn stream_a2a_message(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(agent): PathOf<String>,
    headers: HeaderMap,
    FaceBody { request, files, .. }: FaceBody<A2aHttpFiles>,
) -> ApiResult<Response> {
    let call = HttpCall {
        state: &state,
        caller: &caller,
        agent: &agent,
        headers: &headers,
        files: &files,
    };
    let params = request.members();
    call.answer(RpcMethod::SendStreamingMessage, params).await
}

/// Retrieves a task: `GetTask` of A2A 1.0.
///
/// `{task}:subscribe` streams its updates, as by `POST`.
#[utoipa::path(get, path = "/faces/a2a/{agent}/tasks/{task}", tag = "client", security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name or id of the agent, percent-encoded"),
        ("task" = String, Path, description = "Id of the task"),
        ("A2A-Version" = Option<String>, Header, description = "`1.0`. Required: A2A reads an absent version as 0.3"),
        ("Last-Event-ID" = Option<String>, Header, description = "Of `:subscribe`: the id of the last frame")),
    responses(
    (status = 200, description = "The task", body = Object,
        headers(("Runnel-Run-Id" = String, description = "The run's id, which is also the task's"))),
    (status = 400, description = "The request is not valid (`error.details`)", body = Object),
    (status = 401, description = "No valid API key", body = Object),
    (status = 403, description = "`Host` or `Origin` is not allowed", body = Object),
    (status = 404, description = "No such agent or task for this key", body = Object),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = Object),
    (status = 500, description = "The gateway failed; see its log", body = Object),
    (status = 503, description = "The database does not respond; retry", body = Object)))]
pub(crate) async fn get_a2a_task(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf((agent, task)): PathOf<(String, String)>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let (method, task) = match task.split_once(':') {
        None => (RpcMethod::GetTask, task.as_str()),
        Some((task, "subscribe")) => (RpcMethod::SubscribeToTask, task),
        Some(_) => return Err(no_route()),
    };
    let call = HttpCall {
        state: &state,
        caller: &caller,
        agent: &agent,
        headers: &headers,
        files: &ExtractedFiles::default(),
    };
    call.answer(method, &params_of(task)).await
}

/// Cancels a task, or streams its updates: `CancelTask` and `SubscribeToTask` of A2A 1.0.
///
/// `{task}:cancel` answers with the task after its end; `{task}:subscribe` streams the task as of now and its updates,
/// with `Last-Event-ID` the frames after that one.
#[utoipa::path(post, path = "/faces/a2a/{agent}/tasks/{task}", tag = "client", security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name or id of the agent, percent-encoded"),
        ("task" = String, Path, description = "Id of the task, and `:cancel` or `:subscribe`"),
        ("A2A-Version" = Option<String>, Header, description = "`1.0`. Required: A2A reads an absent version as 0.3"),
        ("Last-Event-ID" = Option<String>, Header, description = "Of `:subscribe`: the id of the last frame")),
    responses(
    (status = 200, description = "The task; of `:subscribe` `StreamResponse`s as server-sent events (`text/event-stream`)", body = Object,
        headers(("Runnel-Run-Id" = String, description = "The run's id, which is also the task's"))),
    (status = 400, description = "The task has ended, or the request is not valid (`error.details`)", body = Object),
    (status = 401, description = "No valid API key", body = Object),
    (status = 403, description = "The role of the key, `Host` or `Origin` is not allowed", body = Object),
    (status = 404, description = "No such agent or task for this key", body = Object),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = Object),
    (status = 500, description = "The gateway failed; see its log", body = Object),
    (status = 503, description = "The database does not respond; retry", body = Object)))]
pub(crate) async fn act_on_a2a_task(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf((agent, task)): PathOf<(String, String)>,
    headers: HeaderMap,
) -> ApiResult<Response> {
    let (method, task) = match task.split_once(':') {
        Some((task, "cancel")) => (RpcMethod::CancelTask, task),
        Some((task, "subscribe")) => (RpcMethod::SubscribeToTask, task),
        _ => return Err(no_route()),
    };
    let call = HttpCall {
        state: &state,
        caller: &caller,
        agent: &agent,
        headers: &headers,
        files: &ExtractedFiles::default(),
    };
    call.answer(method, &params_of(task)).await
}

fn params_of(task: &str) -> JsonObject {
    [("id".to_owned(), json!(task))].into_iter().collect()
}

/// One request for an agent.
struct HttpCall<'a> {
    state: &'a ApiState,
    caller: &'a ScopedCaller,
    agent: &'a str,
    headers: &'a HeaderMap,
    files: &'a ExtractedFiles,
}

impl HttpCall<'_> {
    async fn answer(&self, method: RpcMethod, params: &JsonObject) -> ApiResult<Response> {
        let agent = agent_of_path(self.state, self.caller, self.agent).await?;
        check_version(self.headers)?;
        let call = A2aCall {
            state: self.state,
            caller: self.caller,
            agent: agent.id,
            headers: self.headers,
            files: self.files,
            request: RpcRequest {
                binding: A2aBinding::Http,
                method,
                params: Some(params),
            },
        };
        call.answer().await
    }
}
