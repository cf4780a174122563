//! A2A 1.0 over JSON-RPC and over HTTP with JSON: a task is a run, and its context is the conversation.

mod answer;
mod binding;
mod card;
mod fold;
mod http_json;
mod message;
mod methods;
mod rpc;
mod task;
mod writer;

use axum::extract::State;
use axum::middleware::map_response;
use axum::response::Response;
use domain::large_text::PathStep::{self, Each, Member};
use http::HeaderMap;
use serde_json::Value;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::agents::agent_of_path;
use crate::body::{FaceBody, FilePaths};
use binding::A2aBinding;
use methods::A2aCall;
use rpc::{RpcRequest, in_rpc_form};
use web::auth::ScopedCaller;
use web::query::PathOf;
use web::state::ApiState;

/// Routes of this protocol. Errors of calls have the form of JSON-RPC.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(call_a2a_agent))
        .layer(map_response(in_rpc_form))
        .merge(http_json::routes())
        .routes(routes!(card::get_agent_card))
}

/// A JSON-RPC request.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub(crate) struct A2aRequest {
    /// `2.0`.
    jsonrpc: String,
    /// A text or a number.
    id: Value,
    /// `SendMessage`, `SendStreamingMessage`, `GetTask`, `CancelTask` or `SubscribeToTask`.
    method: String,
    /// Parameters of the method, in A2A's JSON form.
    #[schema(value_type = Object)]
    params: Value,
}

/// Paths of files in the message of a request.
pub(crate) struct A2aFiles;

impl FilePaths for A2aFiles {
    fn file_paths() -> Vec<Vec<PathStep>> {
        let parts = ["params", "message", "parts"].map(Member);
        let files = ["raw", "url"].map(|name| [Each, Member(name)]);
        files.map(|file| [&parts[..], &file].concat()).into()
    }
}

/// Calls a method of A2A 1.0 on an agent.
///
/// Methods: `SendMessage`, `SendStreamingMessage`, `GetTask`, `CancelTask` and `SubscribeToTask`. A task is a run, and
/// `contextId` names its conversation. A repeated `messageId` of the same key answers with the same task. A task
/// continues if the client disconnects: `SubscribeToTask` with `Last-Event-ID` continues its stream.
///
/// Errors are JSON-RPC errors with A2A's codes and the status 200. Errors of the key, of the agent, of sizes and of
/// limits also have their HTTP status.
#[utoipa::path(post, path = "/faces/a2a/{agent}", tag = "client", security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name or id of the agent, percent-encoded"),
        ("A2A-Version" = Option<String>, Header, description = "`1.0`. Required: A2A reads an absent version as 0.3"),
        ("Last-Event-ID" = Option<String>, Header, description = "Of `SubscribeToTask`: the id of the last frame"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = A2aRequest, responses(
    (status = 200, description = "A JSON-RPC response; of `SendStreamingMessage` and `SubscribeToTask` responses as server-sent events (`text/event-stream`)", body = Object,
        headers(("Runnel-Run-Id" = String, description = "The run's id, which is also the task's"))),
    (status = 401, description = "No valid API key", body = Object),
    (status = 403, description = "The role of the key, `Host` or `Origin` is not allowed", body = Object),
    (status = 404, description = "No such agent for this key", body = Object),
    (status = 408, description = "The body was not complete in time", body = Object),
    (status = 413, description = "The request exceeds `limits.event_body_bytes` (16 MiB), or 1 MiB without files", body = Object),
    (status = 415, description = "The body is compressed: send it without `Content-Encoding`", body = Object),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = Object),
    (status = 500, description = "The gateway failed; see its log", body = Object),
    (status = 503, description = "The database does not respond; retry", body = Object)))]
pub(crate) async fn call_a2a_agent(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(agent): PathOf<String>,
    headers: HeaderMap,
    FaceBody { request, files, .. }: FaceBody<A2aFiles>,
) -> Response {
    let binding = A2aBinding::JsonRpc(RpcRequest::id_of(&request));
    let answered = async {
        let agent = agent_of_path(&state, &caller, &agent).await?;
        let request = RpcRequest::read(&request, &headers)?;
        let call = A2aCall {
            state: &state,
            caller: &caller,
            agent: agent.id,
            headers: &headers,
            files: &files,
            request,
        };
        call.answer().await
    };
    answered
        .await
        .unwrap_or_else(|error| binding.error_response(error))
}
