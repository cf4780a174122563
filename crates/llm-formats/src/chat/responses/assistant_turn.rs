//! One turn of the assistant, built from several items.

use std::collections::BTreeMap;

use protocol::JsonObject;
use serde_json::{Value, json};

use crate::chat::carried::put_back;

/// Consecutive text and calls of the assistant: one message.
#[derive(Default)]
pub(super) struct AssistantTurn {
    pub(super) pointer: String,
    pub(super) texts: Vec<String>,
    pub(super) calls: Vec<Value>,
    pub(super) reasoning_members: JsonObject,
    pub(super) carried: BTreeMap<String, JsonObject>,
}

impl AssistantTurn {
    pub(super) fn message(mut self) -> Value {
        // Items are paragraphs of one message in a chat completion.
        let text = self.texts.join("\n\n");
        let mut message = JsonObject::new();
        message.insert("role".to_owned(), json!("assistant"));
        // Providers reject an empty text next to calls.
        let content = if text.is_empty() {
            Value::Null
        } else {
            json!(text)
        };
        message.insert("content".to_owned(), content);
        if !self.calls.is_empty() {
            for call in &mut self.calls {
                let id = call["id"].as_str().unwrap_or_default();
                // Members belong to one call: a repeated id must not get them twice.
                if let Some(members) = self.carried.remove(id) {
                    put_back(call, &members);
                }
            }
            message.insert("tool_calls".to_owned(), Value::Array(self.calls));
            // As with protocol messages, reasoning returns only with calls.
            message.extend(self.reasoning_members);
        }
        Value::Object(message)
    }
}
