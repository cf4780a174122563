//! Token count of a chat completion that was built from a request of another API.

use protocol::JsonObject;
use protocol::message::Message;
use protocol::model::LlmTool;
use serde_json::{Value, json};

use super::token_bounds::prompt_texts;
use models::Model;

/// Counts the tokens like the native API. `extra_texts`: texts that the provider gets in addition.
pub(crate) fn chat_tokens(model: &Model, chat: &JsonObject, extra_texts: &[String]) -> u64 {
    let items = |name: &str| {
        let items = chat.get(name).and_then(Value::as_array);
        items.into_iter().flatten()
    };
    let messages: Vec<_> = items("messages").map(message).collect();
    let tools: Vec<_> = items("tools").filter_map(tool).collect();
    // Messages and tools are counted in their own form; the rest counts as text.
    let others = chat
        .iter()
        .filter(|(name, _)| !["messages", "tools"].contains(&name.as_str()));
    let others = others
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let others = prompt_texts(&others);
    let count = model.count;
    count.of_request(&messages, &tools) + count.of_texts(others.iter().chain(extra_texts))
}

fn message(chat: &Value) -> Message {
    let mut chat = chat.clone();
    for part in chat["content"].as_array_mut().into_iter().flatten() {
        if part["type"] == "file" {
            let file = part["file"].take();
            *part = json!({"type": "file_base64", "file_base64": file["file_data"], "file_name": file["filename"]});
        }
    }
    let text = chat.to_string();
    // A message of an unknown form counts as text.
    serde_json::from_value(chat).unwrap_or_else(|_| Message::text("user", text))
}

fn tool(chat: &Value) -> Option<LlmTool> {
    let function = &chat["function"];
    let description = function["description"].as_str().unwrap_or_default();
    let parameters = function["parameters"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let tool =
        json!({"name": function["name"], "description": description, "parameters": parameters});
    serde_json::from_value(tool).ok()
}
