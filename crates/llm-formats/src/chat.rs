//! Conversion between protocol messages and chat completions. Model providers use chat completions or are
//! adapted to them; runners use protocol messages.

use protocol::JsonObject;
use protocol::message::{ContentElement, Message, MessageContent, ToolCall};
use protocol::model::{LlmRequest, LlmTool};
use serde_json::{Value, json};

use domain::json_repair::repair_json_text;
use domain::json_text::check_json_text;

mod assembled;
mod calls;
pub(crate) mod carried;
pub mod responses;
mod stream;

pub use assembled::Assembler;
pub(crate) use calls::ObjectScan;
pub use calls::{CallTracker, assign_call_ids};
pub use carried::{merge_provider_members, provider_member_texts};
pub use protocol::thinking::{ThinkFilter, without_thinking};
pub use stream::ChunkReader;

/// Reasoning of a model in the text of its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThinkBlocks {
    /// In `<think>` tags.
    Retained,
    Removed,
}

impl ThinkBlocks {
    /// As the request demands.
    pub fn of(request: &LlmRequest) -> Self {
        if request.remove_think {
            Self::Removed
        } else {
            Self::Retained
        }
    }
}

/// Converts a message to a chat completion message for `model`. Reasoning is removed from the assistant's text.
/// Messages with tool calls return the model's own reasoning and unknown members unchanged.
pub fn chat_message(message: &Message, model: &str) -> Value {
    let mut chat = JsonObject::new();
    chat.insert("role".to_owned(), json!(message.role));
    let content = match &message.content {
        None => Value::Null,
        // The block is the gateway's own addition for runners; a provider would take it for the answer.
        Some(MessageContent::Text(text)) if message.role == "assistant" => {
            json!(without_reasoning_block(text))
        }
        Some(MessageContent::Text(text)) => json!(text),
        Some(MessageContent::Parts(parts)) => parts.iter().map(chat_part).collect(),
    };
    chat.insert("content".to_owned(), content);
    if let Some(name) = &message.name {
        chat.insert("name".to_owned(), json!(name));
    }
    if let Some(calls) = message
        .tool_calls
        .as_ref()
        .filter(|calls| !calls.is_empty())
    // Some providers reject an empty list of calls.
    {
        let calls: Vec<_> = calls.iter().map(|call| chat_call(call, model)).collect();
        chat.insert("tool_calls".to_owned(), json!(calls));
    }
    for (name, value) in carried::members_for(message, model) {
        // Last, so that stored members cannot replace the role or the content.
        chat.insert(name.clone(), value.clone());
    }
    if let Some(id) = &message.tool_call_id {
        chat.insert("tool_call_id".to_owned(), json!(id));
    }
    Value::Object(chat)
}

/// Removes the leading reasoning block that the gateway adds to the assistant's text.
fn without_reasoning_block(text: &str) -> &str {
    let Some(reasoning) = text.strip_prefix("<think>\n") else {
        // Only at the start: text that quotes the tag later belongs to the answer.
        return text;
    };
    match reasoning.split_once("\n</think>\n") {
        Some((_, text)) => text,
        // An unclosed block is not the gateway's; keep the text.
        None => text,
    }
}

fn chat_call(call: &ToolCall, model: &str) -> Value {
    let mut chat = json!({"id": call.id, "type": "function",
        "function": {"name": call.function.name, "arguments": call.function.arguments}});
    if let Some(members) = carried::of_call_for(call, model) {
        carried::put_back(&mut chat, members);
    }
    chat
}

fn chat_part(part: &ContentElement) -> Value {
    let named = |reference: &str| {
        let name = part.file_name.as_deref().unwrap_or("file");
        json!({"type": "text", "text": format!("[{name}: {reference}]")})
    };
    if let Some(image) = &part.image_url {
        // A URL passes unchanged: artifacts are resolved to data before the request is sent.
        return json!({"type": "image_url", "image_url": {"url": image.url}});
    }
    if let Some(data) = &part.image_base64 {
        return json!({"type": "image_url", "image_url": {"url": data_url(data, "image/png")}});
    }
    if let Some(data) = &part.file_base64 {
        let name = part.file_name.as_deref().unwrap_or("file");
        let data = data_url(data, "application/octet-stream");
        return json!({"type": "file", "file": {"filename": name, "file_data": data}});
    }
    if let Some(url) = &part.file_url {
        // Chat completions have no file URLs, so the model gets the reference as text.
        return named(url);
    }
    json!({"type": "text", "text": part.text.as_deref().unwrap_or_default()})
}

fn data_url(data: &str, mime_type: &str) -> String {
    if data.starts_with("data:") {
        // Runners may send bare base64 or a complete data URL.
        data.to_owned()
    } else {
        // The first bytes decide: a wrong media type makes providers reject the image.
        let mime_type = kind_of(data).unwrap_or(mime_type);
        format!("data:{mime_type};base64,{data}")
    }
}

/// Detects the media type of base64 data by its first bytes.
fn kind_of(data: &str) -> Option<&'static str> {
    const KINDS: [(&str, &str); 5] = [
        ("iVBORw0KGgo", "image/png"),
        ("/9j/", "image/jpeg"),
        ("R0lGOD", "image/gif"),
        ("UklGR", "image/webp"),
        ("JVBERi0", "application/pdf"),
    ];
    let detected = KINDS.iter().find(|(begin, _)| data.starts_with(begin));
    detected.map(|(_, kind)| *kind)
}

/// Converts a tool to its chat completion form.
pub fn chat_tool(tool: &LlmTool) -> Value {
    json!({"type": "function", "function": {
        "name": tool.name, "description": tool.description, "parameters": tool.parameters}})
}

/// Returns true for a real call id. Some providers send placeholders instead.
pub fn is_id(id: &str) -> bool {
    !matches!(id.trim(), "" | "none" | "None" | "null")
}

/// Returns the arguments of a call or delta. Some servers send an object instead of a text.
pub(crate) fn arguments_of(function: &Value) -> String {
    match function.get("arguments") {
        Some(Value::String(text)) => text.clone(),
        Some(object @ Value::Object(_)) => object.to_string(),
        _ => String::new(),
    }
}

/// Returns the input of a call, which must be an object. Other arguments are wrapped, so that the call stays in
/// the history and readable.
pub fn call_input(arguments: &str) -> Value {
    if arguments.trim().is_empty() {
        // Models send no arguments at all for tools without parameters.
        return json!({});
    }
    // Models sometimes write raw control characters into arguments.
    let text = repair_json_text(arguments.as_bytes());
    let is_valid = check_json_text(&text).is_ok();
    let input = is_valid.then(|| serde_json::from_slice(&text).ok());
    match input.flatten() {
        Some(Value::Object(input)) => Value::Object(input),
        _ => json!({"invalid_arguments": arguments}),
    }
}

/// Returns the text of a message or delta. A refusal is in a member of its own.
pub(crate) fn text_or_refusal(message: &Value) -> String {
    let text = message.get("content").map(plain_text).unwrap_or_default();
    if text.is_empty() {
        text_of(message, "refusal").unwrap_or_default()
    } else {
        text
    }
}

/// Returns the finish reason of a choice. `None`: the choice is unfinished, or the value is a placeholder.
pub fn finish_reason(choice: &Value) -> Option<&str> {
    let reason = choice.get("finish_reason")?.as_str()?;
    // Some servers send these texts in each chunk before the last.
    let is_placeholder = ["", "null", "none"]
        .iter()
        .any(|empty| reason.trim().eq_ignore_ascii_case(empty));
    (!is_placeholder).then_some(reason)
}

/// Returns reasoning that a provider sends in a separate member.
pub(crate) fn reasoning(message: &Value) -> Option<&str> {
    let of = |key| message.get(key).and_then(Value::as_str);
    // DeepSeek and vLLM use the first name, OpenRouter the second; some servers send both with one empty.
    let texts = [of("reasoning_content"), of("reasoning")];
    texts.into_iter().flatten().find(|text| !text.is_empty())
}

fn plain_text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| text_of(part, "text"))
            .collect(),
        _ => String::new(),
    }
}

fn text_of(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(value: Value) -> JsonObject {
        match value {
            Value::Object(members) => members,
            other => panic!("{other} is no object"),
        }
    }

    #[test]
    fn chat_messages_keep_parts_calls_and_results() {
        let message: Message = serde_json::from_value(json!({
            "role": "assistant", "content": [
                {"type": "text", "text": "see"}, {"type": "image_base64", "image_base64": "AAAA"},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                {"type": "file_url", "file_url": "https://x/f.pdf", "file_name": "f.pdf"}],
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"},
                "provider_specific_fields": {"x": 1}}]}))
        .unwrap();
        assert_eq!(
            chat_message(&message, "m"),
            json!({"role": "assistant", "content": [
                {"type": "text", "text": "see"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                {"type": "text", "text": "[f.pdf: https://x/f.pdf]"}],
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]})
        );
        let tool = Message {
            tool_call_id: Some("c1".to_owned()),
            ..Message::text("tool", "4")
        };
        assert_eq!(
            chat_message(&tool, "m"),
            json!({"role": "tool", "content": "4", "tool_call_id": "c1"})
        );
    }

    #[test]
    fn answers_have_text_usage_and_calls_without_nulls() {
        let completion = object(
            json!({"id": "r1", "choices": [{"finish_reason": "tool_calls", "message": {
            "role": "assistant", "content": null, "reasoning_content": "hm",
            "tool_calls": [{"id": null, "function": {"name": "f", "arguments": {"a": 1}}}]}}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "extra": {"cached": 1}}}),
        );
        let reader = |think_blocks| ChunkReader::new(think_blocks).of_model("m");
        let message = reader(ThinkBlocks::Removed).complete(&completion).unwrap();
        assert_eq!(
            serde_json::to_value(&message).unwrap(),
            json!({"message": {"role": "assistant", "content": "", "resp_message_id": "r1",
                "provider_specific_fields": {"finish_reason": "tool_calls", "reasoning_content": "hm", "model": "m"},
                "tool_calls": [{"id": "call_0", "type": "function",
                    "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
                "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "extra": {"cached": 1}}})
        );
        let thinking = reader(ThinkBlocks::Retained).complete(&completion).unwrap();
        assert_eq!(thinking.message.plain_text(), "<think>\nhm\n</think>\n");
        let empty = object(json!({"choices": []}));
        assert!(reader(ThinkBlocks::Retained).complete(&empty).is_none());
    }
}
