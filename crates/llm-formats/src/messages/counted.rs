//! Converts a request for the token counter.

use protocol::JsonObject;
use protocol::message::{ContentElement, FunctionCall, Message, MessageContent, ToolCall};
use protocol::model::LlmTool;
use serde_json::Value;

use super::{list, text};

/// Members that [`counted_request`] covers.
const COUNTED: [&str; 4] = ["model", "messages", "system", "tools"];

/// Returns the messages and tools of a validated request, with every text that a model may read.
pub fn counted_request(body: &JsonObject) -> (Vec<Message>, Vec<LlmTool>) {
    let mut messages = Vec::new();
    if let Some(system) = body.get("system").filter(|system| !system.is_null()) {
        messages.push(message("system", system));
    }
    let turns = list(body.get("messages")).iter();
    messages.extend(turns.map(|turns| message(text(turns, "role"), &turns["content"])));
    let tools = list(body.get("tools")).iter().map(tool);
    (messages, tools.collect())
}

/// Returns the texts of all other members that a model may read.
pub fn other_texts(body: &JsonObject) -> Vec<String> {
    // Numbers and flags cost no tokens.
    let others = body.iter().filter(|(name, value)| {
        let is_text = value.is_string() || value.is_array() || value.is_object();
        is_text && !COUNTED.contains(&name.as_str())
    });
    others.map(|(_, value)| value.to_string()).collect()
}

fn message(role: &str, content: &Value) -> Message {
    let (mut parts, mut calls) = (Vec::new(), Vec::new());
    add(content, &mut parts, &mut calls);
    Message {
        content: Some(MessageContent::Parts(parts)),
        tool_calls: (!calls.is_empty()).then_some(calls),
        ..Message::text(role, "")
    }
}

fn add(content: &Value, parts: &mut Vec<ContentElement>, calls: &mut Vec<ToolCall>) {
    if let Value::String(text) = content {
        return parts.push(ContentElement::text(text.as_str()));
    }
    for block in list(Some(content)) {
        match text(block, "type") {
            // Images have a fixed count, whatever their bytes.
            "image" => parts.push(image()),
            "document" => add_document(block, parts, calls),
            "tool_use" => calls.push(ToolCall {
                id: text(block, "id").to_owned(),
                kind: "function".to_owned(),
                function: FunctionCall {
                    name: text(block, "name").to_owned(),
                    arguments: block["input"].to_string(),
                },
                provider_specific_fields: None,
            }),
            "tool_result" => {
                // Ids are part of the prompt.
                parts.push(ContentElement::text(text(block, "tool_use_id")));
                add(&block["content"], parts, calls);
            }
            "search_result" => {
                for name in ["source", "title"] {
                    parts.push(ContentElement::text(text(block, name)));
                }
                add(&block["content"], parts, calls);
            }
            _ => {
                // Thinking and redacted data count as well: the provider bills them.
                let texts = ["text", "thinking", "data", "tool_name"];
                let texts = texts.iter().map(|name| text(block, name));
                parts.extend(
                    texts
                        .filter(|text| !text.is_empty())
                        .map(ContentElement::text),
                );
            }
        }
    }
}

fn add_document(block: &Value, parts: &mut Vec<ContentElement>, calls: &mut Vec<ToolCall>) {
    for name in ["title", "context"] {
        parts.push(ContentElement::text(text(block, name)));
    }
    let source = &block["source"];
    match text(source, "type") {
        "content" => add(&source["content"], parts, calls),
        "text" => parts.push(ContentElement::text(text(source, "data"))),
        "base64" => parts.push(ContentElement {
            kind: "file_base64".to_owned(),
            file_base64: Some(text(source, "data").to_owned()),
            ..ContentElement::default()
        }),
        // A URL has no known size; `has_document` reports such requests as unbounded.
        _ => parts.push(ContentElement::text(text(source, "url"))),
    }
}

/// The token count of an image does not depend on its bytes.
fn image() -> ContentElement {
    ContentElement {
        kind: "image_base64".to_owned(),
        image_base64: Some(String::new()),
        ..ContentElement::default()
    }
}

/// A tool without a schema is defined by the provider. Its members count as its schema.
fn tool(tool: &Value) -> LlmTool {
    let schema = tool.get("input_schema").and_then(Value::as_object);
    // Examples are sent to the model with the description.
    let examples = list(tool.get("input_examples")).iter();
    let examples: String = examples.map(Value::to_string).collect();
    LlmTool {
        name: text(tool, "name").to_owned(),
        human_desc: String::new(),
        description: text(tool, "description").to_owned() + &examples,
        parameters: schema.or(tool.as_object()).cloned().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_text_of_a_request_is_counted() {
        let body = json!({"model": "m", "system": [{"type": "text", "text": "w1"}], "stop_sequences": ["w2"],
            "messages": [{"role": "user", "content": "w3"}, {"role": "user", "content": [
                {"type": "text", "text": "w4"},
                {"type": "tool_result", "tool_use_id": "w5", "content": [{"type": "text", "text": "w6"}]},
                {"type": "document", "title": "w7", "source": {"type": "text", "data": "w8"}},
                {"type": "search_result", "source": "w9", "title": "w10", "content": [{"type": "text", "text": "w11"}]},
                {"type": "image", "source": {"type": "base64", "data": "picture"}}]},
                {"role": "assistant", "content": [{"type": "thinking", "thinking": "w12"},
                    {"type": "tool_use", "id": "w13", "name": "w14", "input": {"a": "w15"}}]}],
            "tools": [{"name": "w16", "description": "w17", "input_schema": {"title": "w18"}}]});
        let body = body.as_object().unwrap();
        let (messages, tools) = counted_request(body);
        let mut all = serde_json::to_string(&(&messages, &tools)).unwrap();
        all += &other_texts(body).concat();
        for n in 1..=18 {
            assert!(all.contains(&format!("w{n}")), "w{n}: {all}");
        }
        assert!(!all.contains("picture"), "{all}");
        let roles: Vec<_> = messages
            .iter()
            .map(|message| message.role.as_str())
            .collect();
        assert_eq!(roles, ["system", "user", "user", "assistant"]);
    }
}
