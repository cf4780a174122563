//! Outputs of a scripted model.

use action_graph::declaration::CARRIER;
use protocol::message::{FunctionCall, Message, ToolCall};
use serde_json::{Value, json};

/// A call of a tool of the carrier.
pub(crate) fn call(id: &str, kind: &str, name: &str, args: &Value, depends: &[&str]) -> Value {
    json!({"id": id, "type": kind, "name": name, "args": args, "depends": depends})
}

/// An output of one carrier call with these arguments.
pub(crate) fn carrier(arguments: &Value) -> Message {
    native(CARRIER, &arguments.to_string())
}

/// An output of one native call.
pub(crate) fn native(name: &str, arguments: &str) -> Message {
    let call = ToolCall {
        id: "c".to_owned(),
        kind: "function".to_owned(),
        function: FunctionCall {
            name: name.to_owned(),
            arguments: arguments.to_owned(),
        },
        provider_specific_fields: None,
    };
    Message {
        content: None,
        tool_calls: Some(vec![call]),
        ..Message::text("assistant", "")
    }
}

/// Work.
pub(crate) fn act(message: &str, calls: &[Value]) -> Message {
    carrier(&json!({"kind": "act", "message": message, "calls": calls}))
}

/// An answer.
pub(crate) fn answer(message: &str) -> Message {
    carrier(&json!({"kind": "answer", "message": message}))
}

/// An end without an answer.
pub(crate) fn done() -> Message {
    carrier(&json!({"kind": "done"}))
}

/// Text alone.
pub(crate) fn text(text: &str) -> Message {
    Message::text("assistant", text)
}

/// A fenced declaration.
pub(crate) fn fence(declaration: &Value) -> Message {
    let body = serde_json::to_string_pretty(declaration).unwrap();
    text(&format!("```json agent-protocol\n{body}\n```\n"))
}
