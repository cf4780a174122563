//! Converts MCP results and errors.

use std::borrow::Cow;

use http::{HeaderMap, StatusCode};
use protocol::JsonObject;
use protocol::peer_text::shown;
use rmcp::ServiceError;
use rmcp::model::{CallToolResult, ContentBlock, ErrorCode, ErrorData};
use rmcp::service::ClientInitializeError;
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;
use serde_json::Value;

use super::super::result_size::ANSWER_BYTES;
use super::content_blocks::as_sent;
use super::lifecycle::{OpenError, versions};
use super::message_limits::UNREADABLE;
use egress::EgressError;
use egress::redact::Redactor;
use egress::upstream::UpstreamError;

/// A single text block becomes plain text. Other results become an object with MCP's content blocks.
pub(super) fn result(result: &CallToolResult) -> Result<Value, UpstreamError> {
    let is_error = result.is_error == Some(true);
    if let ([block @ ContentBlock::Text(only)], None, false) = (
        result.content.as_slice(),
        &result.structured_content,
        is_error,
    ) && as_sent(block).is_none()
    {
        return storable(Value::String(only.text.clone()));
    }
    let mut object = JsonObject::new();
    let block =
        |block| as_sent(block).map_or_else(|| serde_json::to_value(block), |sent| Ok(sent.clone()));
    let content: Result<_, _> = result.content.iter().map(block).collect();
    let content = content.map_err(|_| UpstreamError::Malformed("its content".to_owned()))?;
    object.insert("content".to_owned(), Value::Array(content));
    if let Some(structured) = &result.structured_content {
        object.insert("structured_content".to_owned(), structured.clone());
    }
    if is_error {
        object.insert("is_error".to_owned(), Value::Bool(true));
    }
    storable(Value::Object(object))
}

/// Validates that a result is storable and within the size limit.
fn storable(value: Value) -> Result<Value, UpstreamError> {
    let text = value.to_string();
    if text.len() > ANSWER_BYTES {
        return Err(UpstreamError::TooLarge { max: ANSWER_BYTES });
    }
    domain::json_text::check_json_text(text.as_bytes())
        .map_err(|fault| UpstreamError::Malformed(format!("it {fault}")))?;
    Ok(value)
}

/// Converts a failed call.
pub(super) fn failure(redactor: &Redactor, error: ServiceError) -> UpstreamError {
    let clean = |text: &str| shown(&redactor.redact(text));
    match error {
        ServiceError::McpError(error) => {
            let message = clean(&refusal(&error));
            match error.code {
                ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND => {
                    UpstreamError::Rejected(message)
                }
                ErrorCode(UNREADABLE) => UpstreamError::Malformed(message),
                _ => UpstreamError::Faulty(message),
            }
        }
        ServiceError::TransportSend(error) => transport(error, clean),
        ServiceError::TransportClosed => {
            UpstreamError::Lost("its connection was closed".to_owned())
        }
        ServiceError::Timeout { .. } => UpstreamError::Timeout,
        ServiceError::Cancelled { reason } => {
            let reason = reason.unwrap_or_else(|| "without a reason".to_owned());
            UpstreamError::Faulty(format!("it gave the call up: {}", clean(&reason)))
        }
        other => UpstreamError::Malformed(clean(&other.to_string())),
    }
}

/// Converts a failed connection.
pub(super) fn no_start(redactor: &Redactor, error: ClientInitializeError) -> OpenError {
    let clean = |text: &str| -> String { redactor.redact(text).into_owned() };
    OpenError::Other(match error {
        ClientInitializeError::TransportError { error, .. } => {
            return OpenError::Upstream(transport(error, clean));
        }
        ClientInitializeError::JsonRpcError(error) => {
            format!("it refused the handshake: {}", clean(&refusal(&error)))
        }
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection".to_owned(),
        other => clean(&other.to_string()),
    })
}

fn refusal(error: &ErrorData) -> Cow<'_, str> {
    match versions(error) {
        Some(versions) => format!("{}; {versions}", error.message).into(),
        None => error.message.as_ref().into(),
    }
}

fn transport(error: DynamicTransportError, clean: impl Fn(&str) -> String) -> UpstreamError {
    let error = match error.error.downcast::<StreamableHttpError<EgressError>>() {
        Ok(error) => *error,
        Err(other) => return UpstreamError::Lost(clean(&other.to_string())),
    };
    let of_status = |status: u16| {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        UpstreamError::of_status(status, &HeaderMap::new(), "")
    };
    match error {
        StreamableHttpError::Client(error) => error.into(),
        StreamableHttpError::HttpStatus(error) => of_status(error.status),
        StreamableHttpError::AuthRequired(_) => of_status(401),
        StreamableHttpError::InsufficientScope(_) => of_status(403),
        StreamableHttpError::ResponseBodyTooLarge { max_size } => {
            UpstreamError::TooLarge { max: max_size }
        }
        error @ (StreamableHttpError::UnexpectedContentType(_)
        | StreamableHttpError::UnexpectedServerResponse(_)
        | StreamableHttpError::Deserialize(_)) => {
            UpstreamError::Malformed(clean(&error.to_string()))
        }
        // The server did not execute requests that it refused for their session.
        StreamableHttpError::SessionExpired => UpstreamError::Away(
            "it refused its session, and the new one as well; read its log".to_owned(),
        ),
        StreamableHttpError::ReinitializationFailed(error) => UpstreamError::Away(format!(
            "it forgot its session and refused a new one: {}",
            clean(&error.message)
        )),
        error => UpstreamError::Lost(clean(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn single_text_is_plain_and_errors_are_marked() {
        let text = |text: &str| json!({"type": "text", "text": text});
        for (answer, expected) in [
            (json!({"content": [text("a")]}), json!("a")),
            (
                json!({"content": [text("a"), text("b")]}),
                json!({"content": [text("a"), text("b")]}),
            ),
            (
                json!({"content": [text("a")], "structuredContent": {"n": 1}}),
                json!({"content": [text("a")], "structured_content": {"n": 1}}),
            ),
            (
                json!({"content": [text("no")], "isError": true}),
                json!({"content": [text("no")], "is_error": true}),
            ),
            (json!({"content": []}), json!({"content": []})),
        ] {
            let answer: CallToolResult = serde_json::from_value(answer).unwrap();
            assert_eq!(result(&answer).unwrap(), expected);
        }
        let huge = json!({"content": [text(&"x".repeat(ANSWER_BYTES))]});
        let huge: CallToolResult = serde_json::from_value(huge).unwrap();
        assert!(matches!(result(&huge), Err(UpstreamError::TooLarge { .. })));
    }
}
