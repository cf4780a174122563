//! MCP: an agent is a server with the tool `ask`. A call is a run up to its end or question.

mod ask;
mod elicitation;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderMap, HeaderValue, StatusCode};
use protocol::error::ErrorBody;
use protocol::id::AgentId;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorCode, ListPromptsRequestMethod,
    ListPromptsResult, ListResourceTemplatesRequestMethod, ListResourceTemplatesResult,
    ListResourcesRequestMethod, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ServerConfig, Tool,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Deserialize;
use serde_json::{Value, json};
use store::AgentRecord;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;

use crate::agent_runs::{cancel_run, find_run_of_agent};
use crate::agents::agent_of_path;
use crate::start::RequestIdentity;
use web::auth::ScopedCaller;
use web::error::ApiResult;
use web::json::BODY_BYTES;
use web::mcp::{McpMessage, McpRequest, McpResponseForm, refused_call, server_of_tools};
use web::query::{PathOf, idempotency_key, single_header};
use web::state::ApiState;

const SURFACE: &str = "mcp";
/// The tool of an agent.
const ASK: &str = "ask";
/// Maximum bytes of the id of a conversation.
const MAX_CONVERSATION_BYTES: usize = 255;
const SESSION_ID: &str = "mcp-session-id";

/// Routes of this protocol.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(speak_agent_mcp))
}

/// Handles a message of the Model Context Protocol for an agent (streamable HTTP).
///
/// The agent is a server with the tool `ask`. A call posts its `message` to the agent, sends the text of the run as
/// progress, and returns the answer. `conversation` continues a conversation. Versions with a handshake, up to
/// 2025-11-25, and the stateless 2026-07-28 are served on any replica.
///
/// The run continues if a client of a version with a handshake disconnects; `notifications/cancelled` cancels it. In
/// 2026-07-28, the disconnect is the cancel.
#[utoipa::path(post, path = "/faces/mcp/{agent}", tag = "client", security(("api_key" = [])),
    params(("agent" = String, Path, description = "Name or id of the agent, percent-encoded"),
        ("Mcp-Session-Id" = Option<String>, Header, description = "The header of the response to `initialize`. With it, a repeated request is the same run, and `notifications/cancelled` finds the run"),
        ("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters, unique for each intended call; for requests without a session"),
        ("traceparent" = Option<String>, Header, description = "W3C Trace Context: the parent span of the run, used when traces are exported. A malformed value is ignored")),
    request_body = McpMessage, responses(
    (status = 200, description = "The JSON-RPC response; of `tools/call` as server-sent events (`text/event-stream`)", body = Object,
        headers(("Mcp-Session-Id" = String, description = "Of `initialize`"))),
    (status = 202, description = "The notification is accepted"),
    (status = 400, description = "Not an MCP message", body = ErrorBody),
    (status = 401, description = "No valid API key", body = ErrorBody),
    (status = 403, description = "The role of the key, `Host` or `Origin` is not allowed", body = ErrorBody),
    (status = 404, description = "No such agent for this key", body = ErrorBody),
    (status = 406, description = "`Accept` must include application/json and text/event-stream", body = ErrorBody),
    (status = 408, description = "The body was not complete in time", body = ErrorBody),
    (status = 413, description = "The message exceeds 1 MiB", body = ErrorBody),
    (status = 415, description = "The body is not application/json, or compressed", body = ErrorBody),
    (status = 429, description = "A limit is reached; retry after `Retry-After` seconds", body = ErrorBody),
    (status = 503, description = "The database does not respond; retry", body = ErrorBody)))]
pub(crate) async fn speak_agent_mcp(
    caller: ScopedCaller,
    State(state): State<ApiState>,
    PathOf(agent): PathOf<String>,
    request: Request,
) -> ApiResult<Response> {
    let message = McpRequest::read(request, &state).await?;
    let agent = agent_of_path(&state, &caller, &agent).await?;
    // The SDK answers malformed messages.
    let head: MessageHead = serde_json::from_slice(&message.bytes).unwrap_or_default();
    let headers = &message.parts.headers;
    let call = AgentMcp {
        session: single_header(headers, SESSION_ID)?.map(str::to_owned),
        key: idempotency_key(headers)?.map(str::to_owned),
        headers: headers.clone(),
        state,
        caller,
        agent,
    };
    let form = match head.method.as_str() {
        // A run may be longer than a client waits for headers.
        "tools/call" => McpResponseForm::EventStream,
        "notifications/cancelled" => {
            call.cancel(&head.params.request_id).await?;
            McpResponseForm::Json
        }
        _ => McpResponseForm::Json,
    };
    let server = AgentMcpServer(Arc::new(call));
    let mut response = message
        .answer(server, form)
        .await
        .or_quoted_refusal()
        .await?;
    if head.method == "initialize" && response.status() == StatusCode::OK {
        // Nothing is stored for it: it only makes the ids of requests unique.
        if let Ok(id) = HeaderValue::from_str(&Uuid::now_v7().simple().to_string()) {
            response.headers_mut().insert(SESSION_ID, id);
        }
    }
    Ok(response)
}

/// Members of a message that decide about its response.
#[derive(Default, Deserialize)]
#[serde(default)]
struct MessageHead {
    method: String,
    params: CancelParams,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct CancelParams {
    request_id: Value,
}

/// A message for an agent.
struct AgentMcp {
    state: ApiState,
    caller: ScopedCaller,
    agent: AgentRecord,
    headers: HeaderMap,
    session: Option<String>,
    /// Idempotency key of the call.
    key: Option<String>,
}

impl AgentMcp {
    fn agent_id(&self) -> AgentId {
        self.agent.id
    }

    /// Identity of a request with this id. `None`: ids are unique in a session only, and there is none.
    fn identity_in_session(&self, request: &Value) -> Option<RequestIdentity> {
        let session = self.session.as_deref().filter(|id| !id.is_empty())?;
        Some(self.identity(&format!("session {session} {request}")))
    }

    fn identity(&self, id: &str) -> RequestIdentity {
        RequestIdentity::of(SURFACE, &self.caller, self.agent_id(), id)
    }

    /// Identity of the call with this id.
    fn call_identity(&self, request: &Value) -> RequestIdentity {
        if let Some(key) = &self.key {
            return self.identity(&format!("key {key}"));
        }
        let of_session = self.identity_in_session(request);
        of_session.unwrap_or_else(|| self.identity(&Uuid::now_v7().to_string()))
    }

    /// Cancels the run that a request of the session started. Others are ignored, as the protocol requires.
    async fn cancel(&self, request: &Value) -> ApiResult<()> {
        let Some(identity) = self.identity_in_session(request) else {
            return Ok(());
        };
        let (state, caller) = (&self.state, &self.caller);
        let Some(id) = identity.find_run(state, caller).await? else {
            return Ok(());
        };
        let run = find_run_of_agent(state, caller, self.agent_id(), &id.to_string()).await?;
        // A run that absorbed the message has other clients.
        if run.is_some_and(|run| run.event_id == identity.event_id()) {
            cancel_run(state, caller, id).await?;
        }
        Ok(())
    }

    fn tool(&self) -> Tool {
        let spec = &self.agent.spec;
        let purpose = spec.description.as_deref().unwrap_or_default();
        let description = format!(
            "{purpose}\n\nAsks the agent {name}, waits for its answer and returns it. To continue the \
             conversation, pass the conversation_id of the last answer as conversation.",
            name = spec.name
        );
        let schema = json!({"type": "object", "properties": {
            "message": {"type": "string", "minLength": 1, "maxLength": BODY_BYTES,
                "description": "The message to the agent, or the answer to its question."},
            "conversation": {"type": "string", "minLength": 1, "maxLength": MAX_CONVERSATION_BYTES,
                "description": "Id of the conversation. Without it, a new one begins."},
        }, "required": ["message"], "additionalProperties": false});
        let schema = schema.as_object().cloned().unwrap_or_default();
        Tool::new(ASK, description.trim_start().to_owned(), Arc::new(schema))
    }
}

/// Server for one message.
#[derive(Clone)]
struct AgentMcpServer(Arc<AgentMcp>);

impl ServerHandler for AgentMcpServer {
    fn get_info(&self) -> ServerConfig {
        let mut info = server_of_tools();
        let spec = &self.0.agent.spec;
        info.server_info = info.server_info.with_title(spec.name.clone());
        info.instructions.clone_from(&spec.description);
        info
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![self.0.tool()]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name != ASK {
            let message = "there is no tool of this name; the agent has the tool ask";
            return Err(ErrorData::new(ErrorCode::INVALID_PARAMS, message, None));
        }
        match Box::pin(self.0.ask(request, &context)).await {
            Ok(response) => Ok(response),
            Err(error) => refused_call(error).map(CallToolResponse::Complete),
        }
    }

    async fn on_initialized(&self, _context: NotificationContext<RoleServer>) {}

    // The SDK would answer these with empty lists, as a server that declares them.

    async fn list_prompts(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListPromptsResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListPromptsRequestMethod>())
    }

    async fn list_resources(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Err(ErrorData::method_not_found::<ListResourcesRequestMethod>())
    }

    async fn list_resource_templates(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Err(ErrorData::method_not_found::<
            ListResourceTemplatesRequestMethod,
        >())
    }
}
