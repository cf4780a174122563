//! MCP for platforms with fixed credentials: each of the seven tools takes the run token as an argument.
//!
//! Headers carry no credential here. The token is removed from the message before the SDK reads it, so it does
//! not reach errors, audit entries or tools.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use protocol::JsonObject;
use protocol::error::ErrorBody;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorCode,
    ListToolsResult, PaginatedRequestParams, ServerConfig, Tool, ToolAnnotations,
};
use rmcp::service::{NotificationContext, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::child_run;
use super::own::OwnTool;
use super::values::{MAX_ID_BYTES, structured, to_json};
use super::{McpCaller, RunMcpServer, speak};
use crate::tools::read_detail;
use web::auth::RunCaller;
use web::auth::run_token::run_of_token;
use web::error::routing::no_route;
use web::error::{ApiError, ApiResult};
use web::json::body_limit;
use web::mcp::{McpMessage, McpRequest, read_arguments, refused_call, server_of_tools};
use web::recheck::{AcceptedCredential, ChecksCredentials};
use web::state::ApiState;

/// Maximum bytes of a message. It is low because the sender is unknown until the message is read.
const SHARED_BYTES: usize = 256 * 1024;
/// The token argument of each tool.
const RUN_TOKEN: &str = "run_token";
/// Maximum characters of a run token.
const MAX_TOKEN_CHARS: usize = 4096;
/// The same message for every invalid token.
const WRONG_TOKEN: &str = "run_token is not valid: pass the token of the current run, unchanged, as \
    the input variable of the platform holds it";

/// A tool of this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SharedTool {
    Own(OwnTool),
    GetToolDetail,
    CallTool,
}

const TOOLS: [SharedTool; 7] = [
    SharedTool::Own(OwnTool::ListAssets),
    SharedTool::Own(OwnTool::GetCurrentEvent),
    SharedTool::Own(OwnTool::HistoryPage),
    SharedTool::Own(OwnTool::RetrieveKnowledge),
    SharedTool::Own(OwnTool::ChildRun),
    SharedTool::GetToolDetail,
    SharedTool::CallTool,
];

/// A body that contains its own credential, so there is none to check again.
struct TokenInBody;

impl ChecksCredentials for TokenInBody {
    async fn check_again(&self, _: Option<&AcceptedCredential>) -> ApiResult<()> {
        Ok(())
    }
}

/// Arguments of `get_tool_detail`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DetailQuery {
    tool_name: String,
}

/// Arguments of `call_tool`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallQuery {
    tool_name: String,
    #[serde(default)]
    parameters: JsonObject,
}

/// The route of this server.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(speak_shared_mcp))
        .layer(body_limit(SHARED_BYTES))
}

/// Handles a message of the Model Context Protocol, for platforms with fixed MCP credentials.
///
/// Each tool takes the run token as argument `run_token`, and uses the grants of that run. The tools are
/// `list_assets`, `get_current_event`, `history_page`, `retrieve_knowledge`, `child_run`, `get_tool_detail` and
/// `call_tool`. The route is 404 unless the operator enables it: `[host_api] shared_mcp = true`.
#[utoipa::path(post, path = "/host/v1/mcp/shared", tag = "host",
    request_body = McpMessage, responses(
    (status = 200, description = "The JSON-RPC response. A wrong token is a tool error", body = Value),
    (status = 202, description = "The notification is accepted"),
    (status = 400, description = "Not an MCP message", body = Value),
    (status = 404, description = "The route is disabled", body = ErrorBody),
    (status = 406, description = "`Accept` must include application/json and text/event-stream", body = ErrorBody),
    (status = 409, description = "The run was cancelled", body = ErrorBody),
    (status = 413, description = "The message exceeds 262,144 bytes", body = ErrorBody),
    (status = 415, description = "The body is not application/json", body = ErrorBody),
    (status = 429, description = "Too many wrong tokens from this address, or the run's call rate is too high", body = ErrorBody),
    (status = 504, description = "The run is past its deadline", body = ErrorBody)))]
async fn speak_shared_mcp(State(state): State<ApiState>, request: Request) -> ApiResult<Response> {
    // A disabled server looks like an unknown route.
    if !state.shared_mcp {
        return Err(no_route());
    }
    let mut message = McpRequest::read(request, &TokenInBody).await?;
    // Before the SDK reads the message: its errors and logs may quote it.
    let called = SharedToolCall::take(&mut message)?;
    let caller = match &called {
        Some(called) => called.caller(&mut message.parts, &state).await?,
        None => None,
    };
    let caller = caller.map(|caller| {
        let key = None;
        Arc::new(McpCaller { caller, state, key })
    });
    let turn = caller
        .as_deref()
        .filter(|_| called.is_some_and(|called| called.reads_catalog));
    let response = speak(SharedMcpServer(caller.clone()), message, turn).await?;
    // SDK errors may quote the message and thus the token.
    response.or_refusal()
}

/// A tool call without its token.
struct SharedToolCall {
    token: String,
    /// The response contains the run's complete catalog.
    reads_catalog: bool,
}

impl SharedToolCall {
    /// Removes the token from a message; `None` if the message is not a tool call.
    fn take(message: &mut McpRequest) -> ApiResult<Option<Self>> {
        let Ok(mut value) = serde_json::from_slice::<Value>(&message.bytes) else {
            // The SDK rejects it.
            return Ok(None);
        };
        if value["method"] != "tools/call" {
            return Ok(None);
        }
        let arguments = value.pointer_mut("/params/arguments");
        let token = arguments.and_then(|arguments| arguments.as_object_mut()?.remove(RUN_TOKEN));
        let token = match token {
            Some(Value::String(token)) if token.len() <= MAX_TOKEN_CHARS => token,
            // Continues with an empty token: all invalid tokens get the same response and count against the rate limit.
            _ => String::new(),
        };
        let rest = value.to_string();
        // A model may have copied the token into another argument.
        if !token.is_empty() && rest.contains(&token) {
            let why =
                "holds the value of run_token in another place, where it would leave the gateway";
            return Err(ApiError::invalid("/params", why));
        }
        let reads_catalog = value["params"]["name"] == OwnTool::ListAssets.name();
        // The length has changed with the removed token.
        message.parts.headers.remove(CONTENT_LENGTH);
        message.bytes.bytes = rest.into();
        Ok(Some(Self {
            token,
            reads_catalog,
        }))
    }

    /// The run of the token; `None` for every invalid token.
    async fn caller(&self, parts: &mut Parts, state: &ApiState) -> ApiResult<Option<RunCaller>> {
        match run_of_token(parts, &self.token, state).await {
            Ok(caller) => Ok(Some(caller)),
            // An invalid token becomes a tool error; other errors keep their status.
            Err(error) if error.code() == "unauthenticated" => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// MCP server for one message. Without a caller it lists its tools but calls none.
#[derive(Clone)]
struct SharedMcpServer(Option<Arc<McpCaller>>);

impl ServerHandler for SharedMcpServer {
    fn get_info(&self) -> ServerConfig {
        server_of_tools()
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = TOOLS.map(SharedTool::described).to_vec();
        // Needs no token: the list is the same for every run.
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(caller) = &self.0 else {
            let text = ContentBlock::text(WRONG_TOKEN);
            return Ok(CallToolResponse::Complete(CallToolResult::error(vec![
                text,
            ])));
        };
        let Some(tool) = SharedTool::parse(&request.name) else {
            let message = "there is no tool of this name";
            return Err(ErrorData::new(ErrorCode::INVALID_PARAMS, message, None));
        };
        let arguments = request.arguments.unwrap_or_default();
        match tool.call(caller, arguments).await {
            Ok(result) => Ok(CallToolResponse::Complete(result)),
            Err(error) => refused_call(error).map(CallToolResponse::Complete),
        }
    }

    async fn on_initialized(&self, _context: NotificationContext<RoleServer>) {}
}

impl SharedTool {
    fn parse(name: &str) -> Option<Self> {
        TOOLS.into_iter().find(|tool| tool.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Own(own) => own.name(),
            Self::GetToolDetail => "get_tool_detail",
            Self::CallTool => "call_tool",
        }
    }

    /// The same for every run; `list_assets` has the names of a run.
    fn described(self) -> Tool {
        let name = json!({"type": "string", "maxLength": MAX_ID_BYTES});
        let (description, mut properties) = match self {
            Self::Own(own) => own.form(&name),
            Self::GetToolDetail => (
                "Reads the description and the parameters of a tool that list_assets names.",
                json!({"tool_name": name}),
            ),
            Self::CallTool => (
                "Calls a tool that list_assets names.",
                json!({
                    "tool_name": name,
                    "parameters": {"type": "object", "description": "As get_tool_detail describes them."},
                }),
            ),
        };
        properties[RUN_TOKEN] = json!({"type": "string", "maxLength": MAX_TOKEN_CHARS,
            "description": "The token of the run, from the input variable of the platform."});
        let required = match self {
            Self::Own(OwnTool::RetrieveKnowledge) => json!([RUN_TOKEN, "kb_id", "query_text"]),
            Self::Own(OwnTool::ChildRun) => {
                let [agent, prompt] = child_run::REQUIRED;
                json!([RUN_TOKEN, agent, prompt])
            }
            Self::Own(_) => json!([RUN_TOKEN]),
            Self::GetToolDetail | Self::CallTool => json!([RUN_TOKEN, "tool_name"]),
        };
        let schema = json!({"type": "object", "properties": properties, "required": required,
            "additionalProperties": false});
        let schema = schema.as_object().cloned().unwrap_or_default();
        let is_read_only = match self {
            Self::Own(own) => own.is_read_only(),
            Self::GetToolDetail => true,
            Self::CallTool => false,
        };
        let hints = ToolAnnotations::new().read_only(is_read_only);
        Tool::new(self.name(), description, Arc::new(schema)).with_annotations(hints)
    }

    /// Calls the tool with the code of its REST route.
    async fn call(
        self,
        caller: &Arc<McpCaller>,
        arguments: JsonObject,
    ) -> ApiResult<CallToolResult> {
        let McpCaller {
            caller: run, state, ..
        } = caller.as_ref();
        match self {
            Self::Own(own) => own.call(run, state, arguments).await,
            Self::GetToolDetail => {
                let DetailQuery { tool_name } = read_arguments(&arguments)?;
                to_json(&read_detail(run, state, tool_name).await?).map(structured)
            }
            Self::CallTool => {
                let query: CallQuery = read_arguments(&arguments)?;
                // The same audit, grants and limits as on the REST route.
                let face = RunMcpServer(Arc::clone(caller));
                face.call_granted(&query.tool_name, query.parameters).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_requires_run_token() {
        for tool in TOOLS {
            let described = tool.described();
            let required = described.input_schema["required"].as_array().unwrap();
            assert!(required.contains(&json!(RUN_TOKEN)), "{}", tool.name());
            assert_eq!(SharedTool::parse(tool.name()), Some(tool));
            for (name, schema) in described.input_schema["properties"].as_object().unwrap() {
                let is_bounded = schema["type"] != "string" || schema["maxLength"].is_u64();
                assert!(is_bounded, "{name} of {}", tool.name());
            }
        }
    }
}
