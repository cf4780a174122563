//! Messages of the Model Context Protocol over streamable HTTP, without sessions: one response for each request.
//!
//! The SDK implements the protocol, both with the handshake of 2025-11-25 and without one.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use domain::json_text::check_json_text;
use http::StatusCode;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use protocol::JsonObject;
use protocol::error::AgentApiError;
use rmcp::model::{
    CallToolResult, ContentBlock, ErrorCode, Implementation, ServerCapabilities, ServerConfig,
};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, ServerHandler};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::body::no_message;
use crate::error::{ApiError, ApiResult};
use crate::json::{BODY_BYTES, media_type, parse, read_json};
use crate::memory_budget::BufferedBody;
use crate::recheck::ChecksCredentials;
use crate::stream::event_stream;

/// Maximum bytes of an SDK error that go into the response.
const REFUSAL_BYTES: usize = 1024;

/// A JSON-RPC message.
#[derive(utoipa::ToSchema)]
#[expect(dead_code, reason = "only its documentation is used")]
pub struct McpMessage {
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

/// Form of the response to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum McpResponseForm {
    /// JSON, unless the server sends a notification first.
    Json,
    /// Server-sent events at once: the headers do not wait for the end of a long call.
    EventStream,
}

/// An MCP message with the headers of its request.
pub struct McpRequest {
    pub parts: Parts,
    pub bytes: BufferedBody,
    /// `Content-Type` is JSON.
    sent_json: bool,
}

impl McpRequest {
    /// Reads a message within the limits of the route.
    pub async fn read(request: Request, state: &impl ChecksCredentials) -> ApiResult<Self> {
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
        Ok(Self {
            parts,
            bytes,
            sent_json,
        })
    }

    /// Handles the message by the SDK.
    pub async fn answer<F: ServerHandler + Clone>(
        self,
        server: F,
        form: McpResponseForm,
    ) -> McpResponse {
        let request = Request::from_parts(self.parts, Body::from(self.bytes.bytes.clone()));
        // The middleware has already checked host and origin, see `host_allowlist`.
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(false)
            .with_json_response(form == McpResponseForm::Json)
            .with_max_request_body_bytes(BODY_BYTES)
            .disable_allowed_hosts()
            .disable_allowed_origins();
        let service = StreamableHttpService::new(
            move || Ok(server.clone()),
            Arc::new(NeverSessionManager::default()),
            config,
        );
        let response = service.handle(request).await.map(Body::new);
        let kind = response.headers().get(CONTENT_TYPE);
        let response = if kind.is_some_and(|kind| kind == "text/event-stream") {
            event_stream(response.into_body())
        } else {
            response
        };
        McpResponse {
            response,
            sent_json: self.sent_json,
        }
    }
}

/// The response of the SDK.
pub struct McpResponse {
    response: Response,
    sent_json: bool,
}

impl McpResponse {
    /// The response to a message. A request that the SDK rejected before it was a message becomes an error, which
    /// quotes the SDK.
    pub async fn or_quoted_refusal(self) -> ApiResult<Response> {
        let Some(status) = self.refusal() else {
            return Ok(self.response);
        };
        // Bounded: the SDK may quote the message.
        let body = axum::body::to_bytes(self.response.into_body(), REFUSAL_BYTES).await;
        let body = body.unwrap_or_default();
        let body = String::from_utf8_lossy(&body);
        let why = body.trim();
        Err(no_message(
            status,
            format!("this is no message of the protocol: {why}"),
        ))
    }

    /// As [`or_quoted_refusal`](Self::or_quoted_refusal), for messages with secrets: the error quotes nothing.
    pub fn or_refusal(self) -> ApiResult<Response> {
        match self.refusal() {
            None => Ok(self.response),
            Some(status) => {
                let message = "this is no message of the protocol".to_owned();
                Err(no_message(status, message))
            }
        }
    }

    /// The status of a rejection before the request was a JSON-RPC message.
    fn refusal(&self) -> Option<StatusCode> {
        let kind = self.response.headers().get(CONTENT_TYPE);
        let is_json = kind.is_some_and(|kind| kind == "application/json");
        match self.response.status() {
            status if !status.is_client_error() || is_json => None,
            // The SDK reports malformed JSON-RPC as an unsupported media type.
            StatusCode::UNSUPPORTED_MEDIA_TYPE if self.sent_json => Some(StatusCode::BAD_REQUEST),
            status => Some(status),
        }
    }
}

/// A server with tools only.
pub fn server_of_tools() -> ServerConfig {
    let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
    info.server_info = Implementation::new("runnel", env!("CARGO_PKG_VERSION"));
    info
}

/// Parses the arguments of a tool call. Errors name the argument.
pub fn read_arguments<T: DeserializeOwned>(arguments: &JsonObject) -> ApiResult<T> {
    let text = serde_json::to_vec(arguments).map_err(|_| ApiError::panicked())?;
    // From text, so that faults have the pointer of the argument.
    parse(&text)
}

/// Errors that the model can act on become results; errors for the client become protocol errors.
pub fn refused_call(error: ApiError) -> Result<CallToolResult, ErrorData> {
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
    Err(protocol_error(code, error))
}

/// A failure of the gateway.
pub fn internal_error(error: ApiError) -> ErrorData {
    protocol_error(ErrorCode::INTERNAL_ERROR, error)
}

fn protocol_error(code: ErrorCode, error: ApiError) -> ErrorData {
    let (_, error) = error.into_parts();
    let message = error.message.clone();
    ErrorData::new(code, message, Some(json!({ "error": error })))
}
