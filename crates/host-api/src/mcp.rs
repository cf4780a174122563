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
use std::time::Duration;

use axum::extract::{Request, State};
use axum::response::Response;
use domain::authorization::{AuthorizationSnapshot, needs_approval};
use protocol::error::ErrorBody;
use protocol::resources::{ToolEffect, ToolOperation, ToolResource};
use protocol::tool::KeyScope;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ProgressToken, ServerConfig, Tool,
    ToolAnnotations,
};
use rmcp::service::{NotificationContext, Peer, RequestContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::Value;
use tokio::runtime::Handle;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::call_approval::{ApprovedOutcome, approval_required};
use super::tools::{CallKey, ToolCalling, schema_of};
use own::OwnTool;
use runs::grant::Grant;
use values::structured;
use web::auth::{AuditedCall, LiveCaller, RunCaller};
use web::catalog_work::{of_run, run_blocking};
use web::error::ApiResult;
use web::mcp::{
    McpMessage, McpRequest, McpResponse, McpResponseForm, internal_error, refused_call,
    server_of_tools,
};
use web::query::idempotency_key;
use web::state::ApiState;

/// Interval of the progress of a call that may wait for a person.
const BETWEEN_PROGRESS: Duration = Duration::from_secs(5);

/// Routes of MCP.
pub(crate) fn routes() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new().routes(routes!(speak_mcp))
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
    let message = McpRequest::read(request, &state).await?;
    let is_of_catalog = is_of_catalog(&message.bytes);
    let key = idempotency_key(&message.parts.headers)?.map(str::to_owned);
    let caller = Arc::new(McpCaller { caller, state, key });
    let turn = is_of_catalog.then_some(&*caller);
    let response = speak(RunMcpServer(Arc::clone(&caller)), message, turn).await?;
    response.or_quoted_refusal().await
}

/// Handles a message by the SDK. `turn` is the run of a message that reads the complete catalog.
async fn speak<F: ServerHandler + Clone>(
    face: F,
    message: McpRequest,
    turn: Option<&McpCaller>,
) -> ApiResult<McpResponse> {
    let answering = message.answer(face, McpResponseForm::Json);
    match turn {
        Some(McpCaller { caller, .. }) => {
            // The SDK serializes the catalog inside of `answer`, thus the complete future runs on a blocking thread.
            let runtime = Handle::current();
            of_run(caller, move |_: &Grant| runtime.block_on(answering)).await
        }
        None => Ok(answering.await),
    }
}

/// True if the response contains the complete catalog of the run, or if this is unknown.
fn is_of_catalog(message: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct CatalogMessage<'a> {
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
    let Ok(CatalogMessage { method, params }) = serde_json::from_slice(message) else {
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

impl ServerHandler for RunMcpServer {
    fn get_info(&self) -> ServerConfig {
        server_of_tools()
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
        recorded.map_err(internal_error)?;
        let grant = Arc::clone(&caller.grant);
        // The caller already holds the catalog permit of the run.
        let tools = run_blocking(move || tools_of(&grant.snapshot)).await;
        tools
            .map(ListToolsResult::with_all_items)
            .map_err(internal_error)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let McpCaller { caller, state, .. } = self.0.as_ref();
        let arguments = request.arguments.unwrap_or_default();
        let called = if let Some(own) = OwnTool::parse(&request.name) {
            own.call(caller, state, arguments).await
        } else {
            let calling = Box::pin(self.call_granted(&request.name, arguments));
            // Only calls that may wait for a person show progress: the response of others is plain JSON.
            let asks = needs_approval(&caller.grant.snapshot, &request.name);
            match context.meta.get_progress_token().filter(|_| asks) {
                Some(token) => with_progress(calling, &context.peer, token).await,
                None => calling.await,
            }
        };
        match called {
            Ok(result) => Ok(CallToolResponse::Complete(result)),
            Err(error) => refused_call(error).map(CallToolResponse::Complete),
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
        // A protocol of one response has no status for a held call, so the call waits.
        let result = match calling.call_when_approved(arguments, key, None).await? {
            ApprovedOutcome::Result(result) => result,
            ApprovedOutcome::Held(_) => return Err(approval_required()),
        };
        // Looked up after the call: the call has checked the grant. An amended tool is in the catalog only.
        let source = match caller.grant.snapshot.tool(name, ToolOperation::Call) {
            Ok(granted) => granted.source.clone(),
            Err(_) => state
                .tools
                .find(name)
                .and_then(|tool| tool.resource.source.clone()),
        };
        let returns_mcp_results = source.is_some_and(|source| source.starts_with("mcp:"));
        // Without this, a model would see an MCP result nested in another one.
        Ok(if returns_mcp_results {
            original_result(result)
        } else {
            structured(result)
        })
    }
}

/// Sends progress until the call returns: clients end silent calls. The first notification turns the response into an
/// event stream.
async fn with_progress<T>(
    mut calling: impl Future<Output = T> + Unpin,
    peer: &Peer<RoleServer>,
    token: ProgressToken,
) -> T {
    let mut count = 0.0;
    loop {
        tokio::select! {
            result = &mut calling => return result,
            () = tokio::time::sleep(BETWEEN_PROGRESS) => {}
        }
        count += 1.0;
        let progress = ProgressNotificationParam::new(token.clone(), count)
            .with_message("waiting for an approval");
        // A client that left cancels the call by its disconnect.
        let _ = peer.notify_progress(progress).await;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

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
