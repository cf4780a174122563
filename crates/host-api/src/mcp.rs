//! Granted tools and read operations over MCP: stateless, one response per request.
//!
//! The SDK implements the protocol, both with the handshake of 2025-11-25 and without one. Each call uses the
//! code of the REST route.

pub(crate) mod shared;

mod child_run;
mod own;
mod values;

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use domain::authorization::AuthorizationSnapshot;
use domain::json_text::check_json_text;
use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use protocol::error::{AgentApiError, ErrorBody};
use protocol::resources::{ToolEffect, ToolOperation, ToolResource};
use protocol::tool::KeyScope;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode,
    Implementation, ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
    Tool, ToolAnnotations,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::tools::{CallKey, ToolCalling, schema_of};
use own::OwnTool;
use runs::grant::Grant;
use values::structured;
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::catalog_work::{of_run, run_blocking};
use web::error::body::no_message;
use web::error::{ApiError, ApiResult};
use web::json::BODY_BYTES;
use web::json::{media_type, read_json};
use web::memory_budget::BufferedBody;
use web::query::idempotency_key;
use web::recheck::ChecksCredentials;
use web::state::ApiState;

/// Maximum bytes of an SDK error that go into the response.
const REFUSAL_BYTES: usize = 1024;

/// Routes of MCP.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(speak_mcp))
}

/// A JSON-RPC message.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
struct McpMessage {
    /// `2.0`.
    jsonrpc: String,
    /// Absent for a notification.
    id: Option<McpId>,
    method: Option<String>,
    #[schema(value_type = Option<Object>)]
    params: Option<Value>,
}

/// Id of a request, repeated in the response.
#[derive(serde::Serialize, utoipa::ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "only its documentation is used")]
enum McpId {
    Number(i64),
    Text(String),
}

/// MCP server for one request.
#[derive(Clone)]
struct RunMcpServer(Arc<McpCaller>);

struct McpCaller {
    caller: RunCaller,
    state: ApiState,
    /// Idempotency key of a call of a granted tool.
    key: Option<String>,
}

/// Handles a message of the Model Context Protocol (streamable HTTP, stateless).
///
/// Methods are `initialize`, `ping`, `tools/list` and `tools/call`. The tools are those granted to the run. In
/// addition, `list_assets`, `get_current_event`, `history_page`, `retrieve_knowledge`, `wait_for_interaction`
/// and `child_run` are available as far as they are granted. An `Idempotency-Key` applies to a call of a granted tool, as
/// of `POST /host/v1/tools/{name}/call`.
#[utoipa::path(post, path = "/host/v1/mcp", tag = "host", security(("run_token" = [])),
    params(("Idempotency-Key" = Option<String>, Header, description = "1 to 255 printable ASCII characters, unique for each intended call of a granted tool")),
    request_body = McpMessage, responses(
    (status = 200, description = "The JSON-RPC response", body = Value),
    (status = 202, description = "The notification is accepted"),
    (status = 400, description = "Not an MCP message", body = Value),
    (status = 401, description = "The run token is not valid", body = ErrorBody),
    (status = 406, description = "`Accept` must include application/json and text/event-stream", body = ErrorBody),
    (status = 415, description = "The body is not application/json", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody)))]
async fn speak_mcp(
    LiveCaller(caller): LiveCaller,
    State(state): State<ApiState>,
    request: Request,
) -> ApiResult<Response> {
    let message = read_message(request, &state).await?;
    let (sent_json, is_of_catalog) = (message.sent_json, is_of_catalog(&message.bytes));
    let key = idempotency_key(&message.parts.headers)?.map(str::to_owned);
    let caller = Arc::new(McpCaller { caller, state, key });
    let turn = is_of_catalog.then_some(&*caller);
    let response = speak(RunMcpServer(Arc::clone(&caller)), message, turn).await?;
    if is_refused(&response) {
        return Err(not_mcp(response, sent_json).await);
    }
    Ok(response)
}

/// An MCP message with the headers of its request.
struct McpRequest {
    parts: Parts,
    bytes: BufferedBody,
    /// `Content-Type` is JSON.
    sent_json: bool,
}

async fn read_message(request: Request, state: &impl ChecksCredentials) -> ApiResult<McpRequest> {
    let (mut parts, body) = request.into_parts();
    let sent_json = media_type(&parts.headers) == "application/json";
    let accept = parts.headers.get(ACCEPT);
    // Clients that send no `Accept` or any type get JSON; the SDK would refuse them.
    if accept.is_none_or(|accept| accept == "*/*") {
        let both = HeaderValue::from_static("application/json, text/event-stream");
        parts.headers.insert(ACCEPT, both);
    }
    let mut full_request = Request::new(body);
    *full_request.extensions_mut() = parts.extensions.clone();
    let bytes = read_json(full_request, state).await?;
    if sent_json {
        // The SDK has no bound on depth and number of values.
        check_json_text(&bytes).map_err(|fault| ApiError::invalid("", fault.to_string()))?;
    }
    Ok(McpRequest {
        parts,
        bytes,
        sent_json,
    })
}

/// Handles a message by the SDK. `turn` is the run of a message that reads the complete catalog.
async fn speak<F: ServerHandler + Clone>(
    face: F,
    message: McpRequest,
    turn: Option<&McpCaller>,
) -> ApiResult<Response> {
    let McpRequest { parts, bytes, .. } = message;
    let request = Request::from_parts(parts, Body::from(bytes.bytes.clone()));
    // The middleware has already checked host and origin, see `host_allowlist`.
    let config = StreamableHttpServerConfig::default()
        .with_legacy_session_mode(false)
        .with_json_response(true)
        .with_max_request_body_bytes(BODY_BYTES)
        .disable_allowed_hosts()
        .disable_allowed_origins();
    let service = StreamableHttpService::new(
        move || Ok(face.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    let response = match turn {
        Some(McpCaller { caller, .. }) => {
            // The SDK serializes the catalog inside of `handle`, thus the complete future runs on a blocking thread.
            let runtime = Handle::current();
            let answering = move |_: &Grant| runtime.block_on(service.handle(request));
            of_run(caller, answering).await?
        }
        None => service.handle(request).await,
    };
    Ok(response.map(Body::new))
}

/// True if the SDK rejected the request before it was a JSON-RPC message.
fn is_refused(response: &Response) -> bool {
    let is_json = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind == "application/json");
    response.status().is_client_error() && !is_json
}

/// True if the response contains the complete catalog of the run, or if this is unknown.
fn is_of_catalog(message: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct McpRequest<'a> {
        #[serde(borrow)]
        method: Option<Cow<'a, str>>,
        #[serde(borrow, default)]
        params: Option<NamedParams<'a>>,
    }
    #[derive(serde::Deserialize)]
    struct NamedParams<'a> {
        #[serde(borrow, default)]
        name: Option<Cow<'a, str>>,
    }
    let Ok(McpRequest { method, params }) = serde_json::from_slice(message) else {
        // An unreadable message takes the slow path, where the SDK rejects it.
        return true;
    };
    match method.as_deref() {
        Some("tools/list") => true,
        Some("tools/call") => {
            let name = params.and_then(|params| params.name);
            name.is_none_or(|name| OwnTool::parse(&name) == Some(OwnTool::ListAssets))
        }
        _ => false,
    }
}

/// Converts an SDK rejection to the common error body.
async fn not_mcp(response: Response, sent_json: bool) -> ApiError {
    let status = match response.status() {
        // The SDK reports malformed JSON-RPC as an unsupported media type.
        StatusCode::UNSUPPORTED_MEDIA_TYPE if sent_json => StatusCode::BAD_REQUEST,
        status => status,
    };
    // Bounded: the SDK may quote the message.
    let body = axum::body::to_bytes(response.into_body(), REFUSAL_BYTES).await;
    let body = body.unwrap_or_default();
    let body = String::from_utf8_lossy(&body);
    let why = body.trim();
    no_message(status, format!("this is no message of the protocol: {why}"))
}

impl ServerHandler for RunMcpServer {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("runnel", env!("CARGO_PKG_VERSION"));
        info
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let McpCaller { caller, state, .. } = self.0.as_ref();
        let call = AuditedCall {
            action: "list_tools",
            resource: "tool",
            operation: "list",
        };
        let recorded = caller.record(state, call, None).await;
        recorded.map_err(internal_fault)?;
        let grant = Arc::clone(&caller.grant);
        // The caller already holds the catalog permit of the run.
        let tools = run_blocking(move || tools_of(&grant.snapshot)).await;
        tools
            .map(ListToolsResult::with_all_items)
            .map_err(internal_fault)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let McpCaller { caller, state, .. } = self.0.as_ref();
        let arguments = request.arguments.unwrap_or_default();
        let called = match OwnTool::parse(&request.name) {
            Some(own) => own.call(caller, state, arguments).await,
            None => self.call_granted(&request.name, arguments).await,
        };
        match called {
            Ok(result) => Ok(CallToolResponse::Complete(result)),
            Err(error) => refused(error).map(CallToolResponse::Complete),
        }
    }

    async fn on_initialized(&self, _context: NotificationContext<RoleServer>) {}
}

impl RunMcpServer {
    async fn call_granted(
        &self,
        name: &str,
        arguments: protocol::JsonObject,
    ) -> ApiResult<CallToolResult> {
        let McpCaller { caller, state, key } = self.0.as_ref();
        let calling = ToolCalling {
            caller,
            state,
            name,
            approval: None,
        };
        let scope = KeyScope::Run;
        let key = key.as_deref().map(|key| CallKey { key, scope });
        let result = calling.call(arguments, key).await?;
        // Looked up after the call: the call has checked the grant.
        let tool = caller.grant.snapshot.tool(name, ToolOperation::Call)?;
        let returns_mcp_results = tool
            .source
            .as_deref()
            .is_some_and(|source| source.starts_with("mcp:"));
        // Without this, a model would see an MCP result nested in another one.
        Ok(if returns_mcp_results {
            original_result(result)
        } else {
            structured(result)
        })
    }
}

fn tools_of(snapshot: &AuthorizationSnapshot) -> Vec<Tool> {
    let can_be_called = |tool: &&ToolResource| tool.operations.contains(&ToolOperation::Call);
    let granted = snapshot.resources.tools.iter().filter(can_be_called);
    let own = OwnTool::granted(snapshot).map(|tool| tool.described(snapshot));
    granted.map(described).chain(own).collect()
}

fn described(tool: &ToolResource) -> Tool {
    let hints = tool.effect.map(|effect| {
        let hints = ToolAnnotations::new().read_only(effect == ToolEffect::Read);
        match effect {
            ToolEffect::Read => hints,
            ToolEffect::Write => hints.destructive(false),
            ToolEffect::Irreversible => hints.destructive(true),
        }
    });
    let hints = match tool.idempotent {
        Some(idempotent) => Some(hints.unwrap_or_default().idempotent(idempotent)),
        None => hints,
    };
    let description = tool.description.clone().map(Into::into);
    let described = Tool::new_with_raw(tool.tool_name.clone(), description, schema_of(tool));
    match hints {
        Some(hints) => described.with_annotations(hints),
        None => described,
    }
}

/// Restores the result of an MCP server to its original form.
fn original_result(value: Value) -> CallToolResult {
    let Some(content @ Value::Array(_)) = value.get("content").cloned() else {
        return structured(value);
    };
    let structured_content = value.get("structured_content").cloned();
    let is_error = value.get("is_error") == Some(&Value::Bool(true));
    let mut result = match serde_json::from_value(content) {
        Ok(content) => {
            let mut result = CallToolResult::success(content);
            result.structured_content = structured_content;
            result
        }
        // A block of a kind that the SDK does not know.
        Err(_) => structured(value),
    };
    result.is_error = Some(is_error);
    result
}

/// Errors that the model can act on become results; errors for the client become protocol errors.
fn refused(error: ApiError) -> Result<CallToolResult, ErrorData> {
    let code = match error.code() {
        "unauthorized" | "not_found" => ErrorCode::INVALID_PARAMS,
        "unauthenticated" | "run_moved" | "cancelled" => ErrorCode::INVALID_REQUEST,
        // The model can act on these: with a protocol error, clients hide the message from it.
        _ => {
            let (_, error) = error.into_parts();
            let AgentApiError { message, .. } = &error;
            let mut result = CallToolResult::error(vec![ContentBlock::text(message.clone())]);
            result.structured_content = Some(json!({ "error": error }));
            return Ok(result);
        }
    };
    Err(fault(code, error))
}

fn internal_fault(error: ApiError) -> ErrorData {
    fault(ErrorCode::INTERNAL_ERROR, error)
}

fn fault(code: ErrorCode, error: ApiError) -> ErrorData {
    let (_, error) = error.into_parts();
    let message = error.message.clone();
    ErrorData::new(code, message, Some(json!({ "error": error })))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restores_original_mcp_results() {
        let text = json!({"type": "text", "text": "a"});
        for (value, expected) in [
            (
                json!("plain"),
                json!({"content": [{"type": "text", "text": "plain"}], "isError": false}),
            ),
            (
                json!({"content": [text, text], "structured_content": {"n": 1}}),
                json!({"content": [text, text], "structuredContent": {"n": 1}, "isError": false}),
            ),
            (
                json!({"content": [text], "is_error": true}),
                json!({"content": [text], "isError": true}),
            ),
            (
                json!({"content": [{"type": "x"}], "is_error": true}),
                json!({"content": [{"type": "text", "text": r#"{"content":[{"type":"x"}],"is_error":true}"#}],
                    "structuredContent": {"content": [{"type": "x"}], "is_error": true}, "isError": true}),
            ),
            (
                json!({"truncated": true}),
                json!({"content": [{"type": "text", "text": "{\"truncated\":true}"}],
                    "structuredContent": {"truncated": true}, "isError": false}),
            ),
        ] {
            let mut result = original_result(value);
            result.result_type = None;
            assert_eq!(serde_json::to_value(result).unwrap(), expected);
        }
    }
}
