//! A chat completion request as a request for messages.

use protocol::JsonObject;
use serde_json::{Value, json};

use crate::outbound::model::{BOUNDS, UNSAID_TOKENS};
use crate::outbound::upstream::UpstreamError;

/// What thinking leaves at least for the answer.
const ANSWER_TOKENS: u64 = 1024;

/// The body of `POST /v1/messages`.
pub(super) fn messages(body: &JsonObject) -> Result<JsonObject, UpstreamError> {
    let mut asked = JsonObject::new();
    let copied = [
        ("model", "model"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
        ("metadata", "metadata"),
    ];
    for (from, to) in copied {
        if let Some(value) = body.get(from) {
            asked.insert(to.to_owned(), value.clone());
        }
    }
    let most = BOUNDS.iter().find_map(|key| body.get(*key)?.as_u64());
    // The API demands one.
    let most = most.unwrap_or(UNSAID_TOKENS);
    asked.insert("max_tokens".to_owned(), json!(most));
    if let Some(budget) = thinking_budget(body, most) {
        asked.insert(
            "thinking".to_owned(),
            json!({"type": "enabled", "budget_tokens": budget}),
        );
        asked.remove("temperature");
    }
    match body.get("stop") {
        Some(stop @ Value::String(_)) => {
            asked.insert("stop_sequences".to_owned(), json!([stop]));
        }
        Some(stops @ Value::Array(_)) => {
            asked.insert("stop_sequences".to_owned(), stops.clone());
        }
        _ => {}
    }
    let (system, turns) = turns(body.get("messages"))?;
    if !system.is_empty() {
        asked.insert("system".to_owned(), json!(system));
    }
    asked.insert("messages".to_owned(), Value::Array(turns));
    let tools: Vec<_> = list(body.get("tools")).iter().map(tool).collect();
    if !tools.is_empty() {
        asked.insert("tools".to_owned(), json!(tools));
        if let Some(choice) = body.get("tool_choice").and_then(tool_choice) {
            asked.insert("tool_choice".to_owned(), choice);
        }
    }
    Ok(asked)
}

fn thinking_budget(body: &JsonObject, most: u64) -> Option<u64> {
    let budget = match body.get("reasoning_effort")?.as_str()? {
        "minimal" | "low" => 1024,
        "medium" => 4096,
        "high" => 16_384,
        "xhigh" | "max" => 32_768,
        _ => return None,
    };
    let room = most
        .checked_sub(ANSWER_TOKENS)
        .filter(|room| *room >= 1024)?;
    Some(budget.min(room))
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The system prompt, and the turns of user and assistant: two of one side in a row are one.
fn turns(messages: Option<&Value>) -> Result<(String, Vec<Value>), UpstreamError> {
    let mut system = Vec::new();
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in list(messages) {
        let role = message["role"].as_str().unwrap_or_default();
        let (side, blocks) = match role {
            "system" | "developer" => {
                system.push(text(&message["content"]));
                continue;
            }
            "user" => ("user", blocks(&message["content"])),
            "tool" => ("user", vec![tool_result(message)]),
            "assistant" => ("assistant", assistant_blocks(message)?),
            other => {
                let what =
                    format!("a message of role {other}; use system, user, assistant or tool");
                return Err(UpstreamError::Unsupported(what));
            }
        };
        match turns.last_mut() {
            Some((last, all)) if *last == side => all.extend(blocks),
            _ => turns.push((side, blocks)),
        }
    }
    let turns = turns.into_iter().filter(|(_, blocks)| !blocks.is_empty());
    let turns = turns.map(|(role, content)| json!({"role": role, "content": content}));
    Ok((system.join("\n\n"), turns.collect()))
}

fn text(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part["text"].as_str())
            .collect(),
        _ => String::new(),
    }
}

/// Text without words is refused there.
fn blocks(content: &Value) -> Vec<Value> {
    match content {
        Value::String(text) if !text.trim().is_empty() => {
            vec![json!({"type": "text", "text": text})]
        }
        Value::Array(parts) => parts.iter().filter_map(block).collect(),
        _ => Vec::new(),
    }
}

fn block(part: &Value) -> Option<Value> {
    match part["type"].as_str()? {
        "image_url" => {
            Some(json!({"type": "image", "source": source(part["image_url"]["url"].as_str()?)}))
        }
        "file" => {
            let data = part["file"]["file_data"].as_str()?;
            Some(json!({"type": "document", "source": source(data)}))
        }
        _ => {
            let text = part["text"]
                .as_str()
                .filter(|text| !text.trim().is_empty())?;
            Some(json!({"type": "text", "text": text}))
        }
    }
}

fn source(url: &str) -> Value {
    let inline = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    match inline {
        Some((media_type, data)) => {
            json!({"type": "base64", "media_type": media_type, "data": data})
        }
        None => json!({"type": "url", "url": url}),
    }
}

fn tool_result(message: &Value) -> Value {
    let blocks = blocks(&message["content"]);
    json!({"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": blocks})
}

fn assistant_blocks(message: &Value) -> Result<Vec<Value>, UpstreamError> {
    let mut all = blocks(&message["content"]);
    for call in list(message.get("tool_calls")) {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().unwrap_or_default();
        let input: Value = if arguments.trim().is_empty() {
            json!({})
        } else {
            let fault = |_| {
                UpstreamError::Unsupported("a tool call whose arguments are no JSON".to_owned())
            };
            serde_json::from_str(arguments).map_err(fault)?
        };
        all.push(
            json!({"type": "tool_use", "id": call["id"], "name": function["name"], "input": input}),
        );
    }
    Ok(all)
}

fn tool(tool: &Value) -> Value {
    let function = &tool["function"];
    let mut schema = function["parameters"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    schema.entry("type").or_insert_with(|| json!("object"));
    json!({"name": function["name"], "description": text(&function["description"]), "input_schema": schema})
}

fn tool_choice(choice: &Value) -> Option<Value> {
    match choice {
        Value::String(word) => match word.as_str() {
            "auto" => Some(json!({"type": "auto"})),
            "required" => Some(json!({"type": "any"})),
            "none" => Some(json!({"type": "none"})),
            _ => None,
        },
        choice => Some(json!({"type": "tool", "name": choice["function"]["name"].as_str()?})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_with_tools_and_images_becomes_turns() {
        let body = json!({
        "model": "claude", "temperature": 0.5, "stop": "END", "reasoning_effort": "low",
        "max_tokens": 4000, "tool_choice": "required",
        "tools": [{"type": "function", "function": {"name": "f", "description": "does", "parameters": {"properties": {}}}}],
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "function": {"name": "f", "arguments": "{\"a\":1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "four"},
            {"role": "user", "content": "go on"},
        ]});
        let asked = messages(body.as_object().unwrap()).unwrap();
        assert_eq!(
            Value::Object(asked),
            json!({"model": "claude", "max_tokens": 4000, "stop_sequences": ["END"], "system": "be kind",
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "tool_choice": {"type": "any"},
            "tools": [{"name": "f", "description": "does", "input_schema": {"properties": {}, "type": "object"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "four"}]},
                    {"type": "text", "text": "go on"}]},
            ]})
        );
    }

    #[test]
    fn what_cannot_be_said_there_is_refused() {
        for messages_of in [
            json!([{"role": "oracle", "content": "x"}]),
            json!([{"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{"}}]}]),
        ] {
            let body = json!({"messages": messages_of});
            let refused = messages(body.as_object().unwrap());
            assert!(
                matches!(refused, Err(UpstreamError::Unsupported(_))),
                "{refused:?}"
            );
        }
    }
}
