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

/// A declaration of calls.
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

/// Text without a call.
pub(crate) fn text(text: &str) -> Message {
    Message::text("assistant", text)
}

/// A fenced declaration.
pub(crate) fn fence(declaration: &Value) -> Message {
    let body = serde_json::to_string_pretty(declaration).unwrap();
    text(&format!("```json agent-protocol\n{body}\n```\n"))
}

/// Chunks of a message: its text and arguments in pieces of four characters.
pub(super) fn chunks(message: Message) -> Vec<Value> {
    let pieces = |text: &str| -> Vec<String> {
        let letters: Vec<char> = text.chars().collect();
        letters
            .chunks(4)
            .map(|piece| piece.iter().collect())
            .collect()
    };
    let mut chunks = Vec::new();
    for piece in pieces(&message.plain_text()) {
        chunks.push(json!({"role": "assistant", "content": piece}));
    }
    for call in message.tool_calls.unwrap_or_default() {
        let name = call.function.name;
        let first =
            json!({"id": call.id, "type": "function", "function": {"name": name, "arguments": ""}});
        chunks.push(json!({"role": "assistant", "tool_calls": [first]}));
        for piece in pieces(&call.function.arguments) {
            let more =
                json!({"id": "", "type": "function", "function": {"name": "", "arguments": piece}});
            chunks.push(json!({"role": "assistant", "tool_calls": [more]}));
        }
    }
    let fields = message.provider_specific_fields;
    chunks.push(json!({"role": "assistant", "is_final": true, "provider_specific_fields": fields}));
    chunks
}
