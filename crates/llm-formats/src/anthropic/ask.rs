//! Translates chat completion requests into Messages requests.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::answer::{DETAILS, is_signed};
use super::schema;
use super::thinking::Thinking;
use crate::chat::call_input;
use crate::{BOUNDS, FormatError, UNSAID_TOKENS, list};

/// The body of `POST /v1/messages` for a model with this thinking mode.
pub fn messages(body: &JsonObject, thinking: Thinking) -> Result<JsonObject, FormatError> {
    let mut request = JsonObject::new();
    let copied = [
        ("model", "model"),
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("top_k", "top_k"),
    ];
    for (from, to) in copied {
        if let Some(value) = body.get(from) {
            request.insert(to.to_owned(), value.clone());
        }
    }
    let max_tokens = BOUNDS.iter().find_map(|key| body.get(*key)?.as_u64());
    // The API requires `max_tokens`.
    let max_tokens = max_tokens.unwrap_or(UNSAID_TOKENS);
    request.insert("max_tokens".to_owned(), json!(max_tokens));
    check(body)?;
    if let Some(schema) = schema_of(body) {
        let format = json!({"type": "json_schema", "schema": schema::supported(schema)});
        request.insert("output_config".to_owned(), json!({"format": format}));
    }
    match body.get("stop") {
        Some(stop @ Value::String(_)) => {
            request.insert("stop_sequences".to_owned(), json!([stop]));
        }
        Some(stops @ Value::Array(_)) => {
            request.insert("stop_sequences".to_owned(), stops.clone());
        }
        _ => {}
    }
    let (system, turns) = turns(body.get("messages"))?;
    if !system.is_empty() {
        request.insert("system".to_owned(), json!(system));
    }
    request.insert("messages".to_owned(), Value::Array(turns));
    let tools: Vec<_> = list(body.get("tools")).iter().map(tool).collect();
    if !tools.is_empty() {
        request.insert("tools".to_owned(), json!(tools));
        if let Some(choice) = choice(body) {
            request.insert("tool_choice".to_owned(), choice);
        }
    }
    thinking.ask(body, &mut request);
    Ok(request)
}

/// Refuses parameters that have no counterpart and would change the answer.
fn check(body: &JsonObject) -> Result<(), FormatError> {
    let format = body.get("response_format").map(|format| &format["type"]);
    let is_plain = format.is_none_or(|kind| kind.is_null() || kind == "text");
    if !is_plain && schema_of(body).is_none() {
        let what = "a response_format without a schema; send one of type json_schema";
        return Err(FormatError::Unsupported(what.to_owned()));
    }
    if body.get("n").and_then(Value::as_u64).is_some_and(|n| n > 1) {
        return Err(FormatError::Unsupported("several answers (n)".to_owned()));
    }
    for (old, new) in [("functions", "tools"), ("function_call", "tool_choice")] {
        if body.get(old).is_some_and(|value| !value.is_null()) {
            let what = format!("{old}; send {new} instead");
            return Err(FormatError::Unsupported(what));
        }
    }
    let tools = list(body.get("tools"));
    if !tools
        .iter()
        .all(|tool| tool["function"]["name"].is_string())
    {
        let what = "a tool that is no function with a name";
        return Err(FormatError::Unsupported(what.to_owned()));
    }
    let choice = body.get("tool_choice").filter(|choice| !choice.is_null());
    if choice.is_some_and(|choice| tool_choice(choice).is_none()) {
        let what = "this tool_choice; use auto, required, none or a function by its name";
        return Err(FormatError::Unsupported(what.to_owned()));
    }
    Ok(())
}

/// The schema of the answer.
fn schema_of(body: &JsonObject) -> Option<&Value> {
    let format = body.get("response_format")?;
    let schema = &format["json_schema"]["schema"];
    (format["type"] == "json_schema" && schema.is_object()).then_some(schema)
}

fn choice(body: &JsonObject) -> Option<Value> {
    let mut choice = body.get("tool_choice").and_then(tool_choice);
    if body.get("parallel_tool_calls") == Some(&Value::Bool(false)) {
        let choice = choice.get_or_insert_with(|| json!({"type": "auto"}));
        if choice["type"] != "none" {
            choice["disable_parallel_tool_use"] = json!(true);
        }
    }
    choice
}

/// The system prompt, and alternating user and assistant turns. Consecutive messages of one side are merged.
fn turns(messages: Option<&Value>) -> Result<(String, Vec<Value>), FormatError> {
    let mut system = Vec::new();
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in list(messages) {
        let role = message["role"].as_str().unwrap_or_default();
        let (side, blocks) = match role {
            "system" | "developer" => {
                system.push(text(&message["content"]));
                continue;
            }
            "user" => ("user", blocks(&message["content"])?),
            "tool" => ("user", vec![tool_result(message)?]),
            "assistant" => ("assistant", assistant_blocks(message)?),
            other => {
                let what =
                    format!("a message of role {other}; use system, user, assistant or tool");
                return Err(FormatError::Unsupported(what));
            }
        };
        match turns.last_mut() {
            // Merge into the last turn: turns must alternate.
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

/// The API refuses blank text, so it is dropped.
fn blocks(content: &Value) -> Result<Vec<Value>, FormatError> {
    let parts = match content {
        Value::String(text) => return Ok(text_block(text).into_iter().collect()),
        Value::Array(parts) => parts,
        _ => return Ok(Vec::new()),
    };
    let blocks = parts.iter().map(block).collect::<Result<Vec<_>, _>>()?;
    Ok(blocks.into_iter().flatten().collect())
}

fn text_block(text: &str) -> Option<Value> {
    (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}))
}

fn block(part: &Value) -> Result<Option<Value>, FormatError> {
    let kind = part["type"].as_str().unwrap_or_default();
    let (kind, data) = match kind {
        "image_url" => ("image", part["image_url"]["url"].as_str()),
        "file" => ("document", part["file"]["file_data"].as_str()),
        _ => {
            let text = part["text"].as_str();
            let text = text.ok_or_else(|| unsayable(kind))?;
            return Ok(text_block(text));
        }
    };
    let data = data.ok_or_else(|| unsayable(kind))?;
    Ok(Some(json!({"type": kind, "source": source(data)})))
}

fn unsayable(kind: &str) -> FormatError {
    let what =
        format!("a part `{kind}` of this shape; send text, images and files with their data");
    FormatError::Unsupported(what)
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

fn tool_result(message: &Value) -> Result<Value, FormatError> {
    let (id, content) = (&message["tool_call_id"], blocks(&message["content"])?);
    Ok(json!({"type": "tool_result", "tool_use_id": id, "content": content}))
}

fn assistant_blocks(message: &Value) -> Result<Vec<Value>, FormatError> {
    let details = list(message.get(DETAILS)).iter();
    let mut all: Vec<_> = details.filter(|block| is_signed(block)).cloned().collect();
    all.extend(blocks(&message["content"])?);
    for call in list(message.get("tool_calls")) {
        let function = &call["function"];
        let input = call_input(function["arguments"].as_str().unwrap_or_default());
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
    fn translates_conversations_with_tools_and_images() {
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
            {"role": "user", "content": "continue"},
        ]});
        let request = messages(body.as_object().unwrap(), Thinking::Budget).unwrap();
        assert_eq!(
            Value::Object(request),
            json!({"model": "claude", "max_tokens": 4000, "stop_sequences": ["END"], "system": "be kind",
            "temperature": 0.5, "tool_choice": {"type": "any"},
            "tools": [{"name": "f", "description": "does", "input_schema": {"properties": {}, "type": "object"}}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "look"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}]},
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "four"}]},
                    {"type": "text", "text": "continue"}]},
            ]})
        );
    }

    #[test]
    fn passes_answer_schemas_beside_effort_levels() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
        let body = json!({"messages": [], "reasoning_effort": "low", "response_format": format});
        let request = messages(body.as_object().unwrap(), Thinking::Adaptive).unwrap();
        let mut closed = schema;
        closed["additionalProperties"] = json!(false);
        let format = json!({"type": "json_schema", "schema": closed});
        assert_eq!(
            request["output_config"],
            json!({"effort": "low", "format": format})
        );
    }

    #[test]
    fn disables_thinking_after_calls_without_signed_reasoning() {
        let request_of = |thinking, messages_of: &Value, more: &Value| {
            let mut body = json!({"messages": messages_of, "reasoning_effort": "medium", "temperature": 1, "top_k": 5,
                "tools": [{"function": {"name": "f"}}]});
            let body = body.as_object_mut().unwrap();
            body.extend(more.as_object().unwrap().clone());
            Value::Object(messages(body, thinking).unwrap())
        };
        let first = json!([{"role": "user", "content": "go"}]);
        let behind_a_call = json!([{"role": "user", "content": "go"},
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "done"}]);
        let request_for =
            |messages_of: &Value, more: &Value| request_of(Thinking::Budget, messages_of, more);
        let thinks = request_for(&first, &json!({"parallel_tool_calls": false}));
        assert_eq!(thinks["thinking"]["budget_tokens"], 4096);
        assert_eq!(thinks.get("temperature").or(thinks.get("top_k")), None);
        let one = json!({"type": "auto", "disable_parallel_tool_use": true});
        assert_eq!(thinks["tool_choice"], one);
        for does_not in [
            request_for(&behind_a_call, &json!({})),
            request_for(&first, &json!({"tool_choice": "required"})),
        ] {
            assert_eq!(does_not.get("thinking"), None, "{does_not}");
            assert_eq!(does_not["top_k"], 5);
        }
        for (of_turns, more) in [
            (&behind_a_call, json!({"reasoning_effort": "max"})),
            (
                &first,
                json!({"reasoning_effort": "high", "tool_choice": "required"}),
            ),
        ] {
            let adapts = request_of(Thinking::Adaptive, of_turns, &more);
            assert_eq!(adapts["thinking"]["type"], "adaptive", "{adapts}");
            assert_eq!(adapts["output_config"], json!({"effort": "high"}));
            assert_eq!(adapts.get("temperature").or(adapts.get("top_k")), None);
        }
        let signed = json!({"type": "thinking", "thinking": "hm", "signature": "EqMD"});
        let mut thought = behind_a_call.clone();
        thought[1]["reasoning_details"] =
            json!([signed, {"type": "reasoning.text", "text": "of another"}]);
        let goes_on = request_for(&thought, &json!({}));
        assert_eq!(goes_on["thinking"]["budget_tokens"], 4096);
        assert_eq!(goes_on["messages"][1]["content"][0], signed);
        assert_eq!(goes_on["messages"][1]["content"][1]["type"], "tool_use");
        let never = request_of(Thinking::None, &first, &json!({}));
        assert_eq!(never.get("thinking"), None);
        assert_eq!(never["top_k"], 5);
    }

    #[test]
    fn keeps_truncated_calls_in_history() {
        for (arguments, input) in [
            ("", json!({})),
            ("{\"a\":1}", json!({"a": 1})),
            ("{\"a\":", json!({"invalid_arguments": "{\"a\":"})),
            ("[1]", json!({"invalid_arguments": "[1]"})),
            (
                r#"{"a":"x\u0000\ud800"}"#,
                json!({"a": "x\u{FFFD}\u{FFFD}"}),
            ),
        ] {
            let call = json!({"id": "c", "function": {"name": "f", "arguments": arguments}});
            let body = json!({"messages": [{"role": "assistant", "tool_calls": [call]}]});
            let request = messages(body.as_object().unwrap(), Thinking::None).unwrap();
            assert_eq!(request["messages"][0]["content"][0]["input"], input);
        }
        let many = format!("{{\"a\":[{}0]}}", "{},".repeat(200_000));
        assert_eq!(call_input(&many), json!({"invalid_arguments": many}));
    }

    #[test]
    fn refuses_untranslatable_parameters() {
        for more in [
            json!({"response_format": {"type": "json_object"}}),
            json!({"n": 2}),
            json!({"functions": [{"name": "f"}]}),
            json!({"function_call": "auto"}),
            json!({"tools": [{"type": "web_search"}]}),
            json!({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto"}}}),
            json!({"tool_choice": "sometimes"}),
        ] {
            let refused = messages(more.as_object().unwrap(), Thinking::None);
            assert!(
                matches!(refused, Err(FormatError::Unsupported(_))),
                "{more}: {refused:?}"
            );
        }
        for messages_of in [
            json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "AA=="}}]}]),
            json!([{"role": "user", "content": [{"type": "file", "file": {"file_id": "f-1"}}]}]),
            json!([{"role": "oracle", "content": "x"}]),
        ] {
            let body = json!({"messages": messages_of});
            let refused = messages(body.as_object().unwrap(), Thinking::None);
            assert!(
                matches!(refused, Err(FormatError::Unsupported(_))),
                "{refused:?}"
            );
        }
    }
}
