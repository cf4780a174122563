//! Results for the gateway. The kit sets run id and sequence.

use protocol::JsonObject;
use protocol::interaction::{INTERACTION_REQUESTED, InteractionRequest};
use protocol::message::{Message, MessageChunk, MessageContent};
use protocol::result::{
    ActionRequestedPayload, AgentRunResult, MessageCompletedPayload, MessageDeltaPayload,
    ProcessorLogPayload, ResultType, ToolCallCompletedPayload, ToolCallStartedPayload,
};
use serde_json::{Value, json};

use crate::upstream::json::object;

/// Maximum bytes of one value of a tool call.
const TOOL_BYTES: usize = 16 * 1024;
/// Maximum bytes of a log line.
const LOG_BYTES: usize = 4_000;
/// Result type of a model's reasoning.
pub const THOUGHT: &str = "x.connectors.thought";

/// A result of any type.
pub fn custom(kind: &str, data: JsonObject) -> AgentRunResult {
    AgentRunResult {
        run_id: String::new(),
        kind: kind.to_owned(),
        data,
        usage: None,
        sequence: None,
        timestamp: None,
    }
}

fn standard(kind: ResultType, payload: Value) -> AgentRunResult {
    custom(kind.as_str(), object(payload))
}

/// `message.delta`: the next text, and optionally the full text so far.
pub fn delta(text: &str, all: Option<&str>, sequence: i64) -> AgentRunResult {
    let chunk = MessageChunk {
        role: "assistant".to_owned(),
        content: Some(MessageContent::Text(text.to_owned())),
        all_content: all.map(str::to_owned),
        msg_sequence: Some(sequence),
        ..MessageChunk::default()
    };
    standard(
        ResultType::MessageDelta,
        json!(MessageDeltaPayload { chunk }),
    )
}

/// `message.completed`. The driver fills in `file_ids`.
pub fn completed(text: &str) -> AgentRunResult {
    let message = Message::text("assistant", text);
    let file_ids = Vec::new();
    standard(
        ResultType::MessageCompleted,
        json!(MessageCompletedPayload { message, file_ids }),
    )
}

/// `tool.call.started`. Large parameters are cut to a preview.
pub fn tool_started(id: &str, name: &str, parameters: Value) -> AgentRunResult {
    let payload = ToolCallStartedPayload {
        tool_call_id: cut(id, 255),
        tool_name: cut(name, 255),
        parameters: object(bounded(parameters)),
    };
    standard(ResultType::ToolCallStarted, json!(payload))
}

/// `tool.call.completed`. A large result is cut to a preview.
pub fn tool_completed(id: &str, name: &str, result: Value, error: Option<&str>) -> AgentRunResult {
    let payload = ToolCallCompletedPayload {
        tool_call_id: cut(id, 255),
        tool_name: cut(name, 255),
        result: Some(object(bounded(result))).filter(|result| !result.is_empty()),
        error: error.map(|error| cut(error, LOG_BYTES)),
    };
    standard(ResultType::ToolCallCompleted, json!(payload))
}

/// `processor.log` of that level.
pub fn log(level: &str, text: &str) -> AgentRunResult {
    let payload = ProcessorLogPayload {
        text: cut(text, LOG_BYTES),
        level: Some(level.to_owned()),
    };
    standard(ResultType::ProcessorLog, json!(payload))
}

/// A thought of the platform's model.
pub fn thought(text: &str) -> AgentRunResult {
    custom(THOUGHT, object(json!({"text": text})))
}

/// `action.requested` with a question that the run waits for.
pub fn ask(request: &InteractionRequest) -> AgentRunResult {
    let payload = ActionRequestedPayload {
        action: INTERACTION_REQUESTED.to_owned(),
        target: Value::Null,
        payload: json!(request),
        idempotency_key: None,
        timeout_seconds: None,
    };
    standard(ResultType::ActionRequested, json!(payload))
}

fn bounded(value: Value) -> Value {
    let text = value.to_string();
    if text.len() <= TOOL_BYTES {
        // A JSON value cannot be cut and stay valid, so the preview is a text.
        return value;
    }
    json!({"truncated": true, "bytes": text.len(), "preview": cut(&text, TOOL_BYTES / 2)})
}

/// Cuts a text to at most `bytes` (3 or more), between characters.
pub fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    // Reserve the bytes of the ellipsis, so that the result never exceeds the limit.
    let end = text.floor_char_boundary(bytes.saturating_sub('…'.len_utf8()));
    format!("{}…", &text[..end])
}
