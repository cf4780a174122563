//! Converts a request to a chat completion request, for providers without this API.

use std::borrow::Cow;

use protocol::JsonObject;
use protocol::admin::Fault;
use serde_json::{Value, json};

use super::{list, own_signature_model, text};

/// Members that are translated, or have no meaning for other APIs.
const TRANSLATED: [&str; 12] = [
    "messages",
    "system",
    "stop_sequences",
    "stream",
    "tools",
    "tool_choice",
    "thinking",
    "metadata",
    "output_config",
    "output_format",
    "context_management",
    "cache_control",
];
/// Separator between texts of different blocks.
const BETWEEN: &str = "\n\n";
/// Precedes a conversation that the assistant begins: chat templates demand that a user speaks first.
pub(crate) const BEGINS_EARLIER: &str = "[The conversation began before this.]";

/// Converts the request to a chat completion request for `model`, the granted model's id. Consecutive messages
/// of one role are merged. Reasoning written by the gateway returns only to the same model.
///
/// # Errors
/// A fault at the part of the request that chat completions cannot express.
pub fn chat_request(body: &JsonObject, model: &str) -> Result<JsonObject, Fault> {
    let mut chat = JsonObject::new();
    for (name, value) in body {
        // Other members have the same name in both APIs, or the operator allowed them.
        if !value.is_null() && !TRANSLATED.contains(&name.as_str()) {
            chat.insert(name.clone(), value.clone());
        }
    }
    let stops = list(body.get("stop_sequences"));
    // Some servers reject an empty list.
    if !stops.is_empty() {
        chat.insert("stop".to_owned(), json!(stops));
    }
    let messages = Translation { model }.messages(body)?;
    chat.insert("messages".to_owned(), Value::Array(messages));
    let tools = list(body.get("tools")).iter().enumerate();
    let tools = tools.map(|(n, tool)| chat_tool(n, tool, model));
    let tools = tools.collect::<Result<Vec<_>, _>>()?;
    // A choice without tools is an error of many servers.
    if !tools.is_empty() {
        chat.insert("tools".to_owned(), Value::Array(tools));
        add_choice(body.get("tool_choice"), &mut chat);
    }
    add_format(body, &mut chat);
    let effort = body
        .get("output_config")
        .map(|config| text(config, "effort"));
    if let Some(effort) = effort.filter(|effort| !effort.is_empty()) {
        // Not every model supports efforts above `high`.
        let effort = if effort == "max" { "high" } else { effort };
        chat.insert("reasoning_effort".to_owned(), json!(effort));
    }
    Ok(chat)
}

fn chat_tool(n: usize, tool: &Value, model: &str) -> Result<Value, Fault> {
    // Tools that Anthropic defines have no schema; only its own models know them.
    let Some(schema) = tool.get("input_schema") else {
        let message = format!(
            "must be custom: the provider of {model} does not know this tool of Anthropic's; describe it with an input_schema"
        );
        return Err(Fault::new(format!("/tools/{n}/type"), message));
    };
    let mut function = json!({"name": tool["name"], "description": text(tool, "description"), "parameters": schema});
    // Absent means false, and some servers reject the member.
    if tool["strict"] == true {
        function["strict"] = json!(true);
    }
    Ok(json!({"type": "function", "function": function}))
}

fn add_choice(choice: Option<&Value>, chat: &mut JsonObject) {
    let Some(choice) = choice.filter(|choice| !choice.is_null()) else {
        return;
    };
    let chosen = match text(choice, "type") {
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => json!({"type": "function", "function": {"name": choice["name"]}}),
        // Unknown choices were rejected by the check of the request.
        _ => json!("auto"),
    };
    chat.insert("tool_choice".to_owned(), chosen);
    if choice["disable_parallel_tool_use"] == true {
        chat.insert("parallel_tool_calls".to_owned(), json!(false));
    }
}

fn add_format(body: &JsonObject, chat: &mut JsonObject) {
    let config = body.get("output_config").map(|config| &config["format"]);
    let format = config.filter(|format| format.is_object());
    let Some(format) = format.or_else(|| body.get("output_format")) else {
        return;
    };
    if let Some(schema) = format.get("schema") {
        // Completions require a name for the schema.
        let schema = json!({"name": "answer", "schema": schema, "strict": true});
        let format = json!({"type": "json_schema", "json_schema": schema});
        chat.insert("response_format".to_owned(), format);
    }
}

/// A block with its pointer from the body.
type LocatedBlock<'a> = (String, Cow<'a, Value>);

struct Translation<'a> {
    model: &'a str,
}

impl Translation<'_> {
    fn messages(&self, body: &JsonObject) -> Result<Vec<Value>, Fault> {
        let mut messages: Vec<_> = system_message(body).into_iter().collect();
        let turns = turns(body);
        // Chat templates demand that a user speaks first.
        if turns.first().is_some_and(|(role, _)| *role == "assistant") {
            // Models would take an empty message for the user's first request.
            messages.push(json!({"role": "user", "content": BEGINS_EARLIER}));
        }
        for (role, blocks) in turns {
            match role {
                "assistant" => messages.extend(self.assistant(&blocks)),
                _ => self.user(&blocks, &mut messages)?,
            }
        }
        Ok(messages)
    }

    /// Tool results come first, as chat completions require, then all other content.
    fn user(&self, blocks: &[LocatedBlock<'_>], messages: &mut Vec<Value>) -> Result<(), Fault> {
        let (mut shown, mut parts) = (Vec::new(), Vec::new());
        for (pointer, block) in blocks {
            if text(block, "type") == "tool_result" {
                messages.push(self.tool_result(pointer, block, &mut shown)?);
            } else {
                self.add_part(pointer, block, &mut parts)?;
            }
        }
        // The media of tool results precede the user's own text, which may refer to them.
        shown.append(&mut parts);
        if !shown.is_empty() {
            messages.push(json!({"role": "user", "content": content_of(shown)}));
        }
        Ok(())
    }

    /// Returns the message of one tool result. Its images and files go to `shown`, because tool messages contain
    /// only text.
    fn tool_result(
        &self,
        pointer: &str,
        block: &Value,
        shown: &mut Vec<Value>,
    ) -> Result<Value, Fault> {
        let mut parts = Vec::new();
        for (pointer, block) in placed(&format!("{pointer}/content"), &block["content"]) {
            self.add_part(&pointer, &block, &mut parts)?;
        }
        let (mut texts, before) = (Vec::new(), shown.len());
        for part in parts {
            match part["text"].as_str() {
                Some(text) => texts.push(text.to_owned()),
                // Tool messages contain only text, so media follow in a user message.
                None => shown.push(part),
            }
        }
        if shown.len() > before {
            texts.push("(its images and files are in the next message)".to_owned());
        }
        let mut content = texts.join(BETWEEN);
        // Completions have no error flag for tool results.
        if block["is_error"] == true {
            content.insert_str(0, "Error: ");
        }
        Ok(json!({"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}))
    }

    /// Adds the content of a block as message parts. Empty texts are omitted.
    fn add_part(&self, pointer: &str, block: &Value, parts: &mut Vec<Value>) -> Result<(), Fault> {
        let source = &block["source"];
        match text(block, "type") {
            "image" => {
                parts.push(json!({"type": "image_url", "image_url": {"url": url_of(source)}}));
            }
            "document" => match text(source, "type") {
                "content" => {
                    let of_source = format!("{pointer}/source/content");
                    add_text(&heading(block), parts);
                    for (pointer, block) in placed(&of_source, &source["content"]) {
                        self.add_part(&pointer, &block, parts)?;
                    }
                }
                "text" => {
                    let texts = [heading(block), text(source, "data").to_owned()];
                    add_text(texts.join("\n").trim_start(), parts);
                }
                "base64" => {
                    let name = Some(text(block, "title")).filter(|title| !title.is_empty());
                    let file = json!({"filename": name.unwrap_or("document.pdf"), "file_data": url_of(source)});
                    parts.push(json!({"type": "file", "file": file}));
                }
                _ => {
                    let message = format!(
                        // The gateway fetches no documents, and completions accept none by URL.
                        "must contain the data: the provider of {} accepts no documents by URL",
                        self.model
                    );
                    return Err(Fault::new(format!("{pointer}/source"), message));
                }
            },
            "search_result" => {
                let head = format!("{} ({})", text(block, "title"), text(block, "source"));
                let texts = placed("", &block["content"]).into_iter();
                let texts: Vec<_> = texts
                    .map(|(_, block)| text(&block, "text").to_owned())
                    .collect();
                add_text(&format!("{head}\n{}", texts.join("\n")), parts);
            }
            "tool_reference" => {
                add_text(
                    &format!("The tool {} is available.", text(block, "tool_name")),
                    parts,
                );
            }
            _ => add_text(text(block, "text"), parts),
        }
        Ok(())
    }

    /// `None`: the blocks have no content for a completion.
    fn assistant(&self, blocks: &[LocatedBlock<'_>]) -> Option<Value> {
        let (mut texts, mut thought, mut calls) = (String::new(), String::new(), Vec::new());
        for (_, block) in blocks {
            match text(block, "type") {
                "tool_use" => {
                    let input = &block["input"];
                    // `null` is no object; the arguments of a call must be one.
                    let input = if input.is_null() {
                        json!({})
                    } else {
                        input.clone()
                    };
                    let function = json!({"name": block["name"], "arguments": input.to_string()});
                    calls
                        .push(json!({"id": block["id"], "type": "function", "function": function}));
                }
                // Reasoning of another model would mislead this one, or be rejected.
                "thinking" if own_signature_model(block) == Some(self.model) => {
                    thought.push_str(text(block, "thinking"));
                }
                "text" => texts.push_str(text(block, "text")),
                _ => {}
            }
        }
        // Reasoning without text and calls is no message for a completion.
        if texts.is_empty() && calls.is_empty() {
            return None;
        }
        let content = if texts.is_empty() {
            Value::Null
        } else {
            json!(texts)
        };
        let mut message = json!({"role": "assistant", "content": content});
        // The member that DeepSeek and vLLM read.
        if !thought.is_empty() {
            message["reasoning_content"] = json!(thought);
        }
        if !calls.is_empty() {
            message["tool_calls"] = json!(calls);
        }
        Some(message)
    }
}

/// Merges the blocks of consecutive messages of one role. Messages without content separate no others.
fn turns(body: &JsonObject) -> Vec<(&str, Vec<LocatedBlock<'_>>)> {
    let mut turns: Vec<(&str, Vec<LocatedBlock<'_>>)> = Vec::new();
    for (n, message) in list(body.get("messages")).iter().enumerate() {
        let role = text(message, "role");
        let blocks = placed(&format!("/messages/{n}/content"), &message["content"]);
        // System messages become one message at the beginning.
        if role == "system" || blocks.iter().all(|(_, block)| is_silent(block)) {
            continue;
        }
        match turns.last_mut() {
            Some((last, all)) if *last == role => all.extend(blocks),
            _ => turns.push((role, blocks)),
        }
    }
    turns
}

/// Returns true for a block without content for a completion.
fn is_silent(block: &Value) -> bool {
    match text(block, "type") {
        "text" => text(block, "text").trim().is_empty(),
        "thinking" | "redacted_thinking" => true,
        _ => false,
    }
}

/// Returns the blocks of a content, which may be a plain text.
fn placed<'a>(pointer: &str, content: &'a Value) -> Vec<LocatedBlock<'a>> {
    match content {
        Value::String(text) => {
            let block = json!({"type": "text", "text": text});
            vec![(pointer.to_owned(), Cow::Owned(block))]
        }
        content => list(Some(content))
            .iter()
            .enumerate()
            .map(|(n, block)| (format!("{pointer}/{n}"), Cow::Borrowed(block)))
            .collect(),
    }
}

/// Joins all system texts into one message, because many chat templates accept only one, at the beginning.
fn system_message(body: &JsonObject) -> Option<Value> {
    let system = list(body.get("messages")).iter();
    let system = system.filter(|message| text(message, "role") == "system");
    let system = system.map(|message| &message["content"]);
    let blocks = body.get("system").into_iter().chain(system);
    let blocks = blocks.flat_map(|content| placed("", content));
    let texts = blocks.map(|(_, block)| text(&block, "text").to_owned());
    let texts: Vec<_> = texts.filter(|text| !text.trim().is_empty()).collect();
    (!texts.is_empty()).then(|| json!({"role": "system", "content": texts.join(BETWEEN)}))
}

/// Returns text-only content as a plain text, because some servers reject a list of parts.
fn content_of(parts: Vec<Value>) -> Value {
    // A list of texts only becomes one text: some servers reject lists of parts.
    let texts: Option<Vec<_>> = parts.iter().map(|part| part["text"].as_str()).collect();
    match texts {
        Some(texts) => json!(texts.join(BETWEEN)),
        None => Value::Array(parts),
    }
}

fn add_text(text: &str, parts: &mut Vec<Value>) {
    if !text.trim().is_empty() {
        parts.push(json!({"type": "text", "text": text}));
    }
}

fn heading(document: &Value) -> String {
    let lines = ["title", "context"].map(|name| text(document, name));
    let lines: Vec<_> = lines.into_iter().filter(|line| !line.is_empty()).collect();
    lines.join("\n")
}

fn url_of(source: &Value) -> String {
    match text(source, "type") {
        "base64" => {
            let (media_type, data) = (text(source, "media_type"), text(source, "data"));
            format!("data:{media_type};base64,{data}")
        }
        _ => text(source, "url").to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(body: &Value) -> Value {
        Value::Object(chat_request(body.as_object().unwrap(), "m").unwrap())
    }

    fn messages(messages: &Value) -> Value {
        chat(&json!({"messages": messages}))["messages"].clone()
    }

    #[test]
    fn a_turn_with_tools_keeps_ids_and_order() {
        let picture = json!({"type": "base64", "media_type": "image/png", "data": "AA=="});
        let chat = messages(&json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "a secret", "signature": "EqMD"},
                {"type": "thinking", "thinking": "hm", "signature": "runnel:m"},
                {"type": "text", "text": "I lo"}, {"type": "text", "text": "ok."},
                {"type": "tool_use", "id": "toolu_A-1", "name": "f", "input": {"a": 1}},
                {"type": "tool_use", "id": "toolu_A-2", "name": "g", "input": {}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_A-1", "content": [
                    {"type": "text", "text": "four"}, {"type": "image", "source": picture}]},
                {"type": "text", "text": "continue"}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "toolu_A-2", "is_error": true, "content": "no"},
                {"type": "text", "text": ""}]},
        ]));
        let call = |id: &str, name: &str, arguments: &str| {
            json!({"id": id, "type": "function",
            "function": {"name": name, "arguments": arguments}})
        };
        assert_eq!(
            chat,
            json!([
                {"role": "user", "content": "go"},
                {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
                    "tool_calls": [call("toolu_A-1", "f", "{\"a\":1}"), call("toolu_A-2", "g", "{}")]},
                {"role": "tool", "tool_call_id": "toolu_A-1", "content": "four\n\n(its images and files are in the next message)"},
                {"role": "tool", "tool_call_id": "toolu_A-2", "content": "Error: no"},
                {"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                    {"type": "text", "text": "continue"}]},
            ])
        );
    }

    #[test]
    fn merges_consecutive_roles_and_drops_empty_texts() {
        let chat = messages(&json!([
            {"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]},
            {"role": "assistant", "content": "c"}, {"role": "assistant", "content": "d"},
            {"role": "user", "content": [{"type": "text", "text": " "}]},
            {"role": "system", "content": "be brief"},
        ]));
        assert_eq!(
            chat,
            json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "a\n\nb"},
                {"role": "assistant", "content": "cd"}])
        );
    }

    #[test]
    fn system_texts_come_first_and_roles_alternate() {
        let say = |role: &str, text: &str| json!({"role": role, "content": text});
        for (messages, expected) in [
            (
                json!([
                    say("user", "a"),
                    say("assistant", "b"),
                    say("system", "s"),
                    say("user", "c")
                ]),
                json!([
                    say("system", "be kind\n\ns"),
                    say("user", "a"),
                    say("assistant", "b"),
                    say("user", "c")
                ]),
            ),
            (
                json!([
                    say("user", "a"),
                    say("system", "s"),
                    say("user", "b"),
                    say("system", "t")
                ]),
                json!([say("system", "be kind\n\ns\n\nt"), say("user", "a\n\nb")]),
            ),
            (
                json!([say("user", "a"), {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]},
                    say("user", "b")]),
                json!([say("system", "be kind"), say("user", "a\n\nb")]),
            ),
            (
                json!([say("assistant", "a"), say("user", "b")]),
                json!([
                    say("system", "be kind"),
                    say("user", BEGINS_EARLIER),
                    say("assistant", "a"),
                    say("user", "b")
                ]),
            ),
        ] {
            let body = json!({"system": "be kind", "messages": messages});
            assert_eq!(chat(&body)["messages"], expected, "{messages}");
        }
    }

    #[test]
    fn maps_settings_to_chat_completion_names() {
        let body = json!({"model": "m", "max_tokens": 9, "temperature": 0.5, "top_p": null, "stop_sequences": ["END"],
            "stream": true, "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
            "system": [{"type": "text", "text": "a", "cache_control": {}}, {"type": "text", "text": "b"}],
            "output_config": {"effort": "max", "format": {"type": "json_schema", "schema": {"type": "object"}}},
            "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": true,
                "cache_control": {}}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "opened": 1,
            "messages": [{"role": "user", "content": "hi"}]});
        let schema = json!({"name": "answer", "schema": {"type": "object"}, "strict": true});
        assert_eq!(
            chat(&body),
            json!({"model": "m", "max_tokens": 9, "temperature": 0.5, "stop": ["END"], "opened": 1,
                "messages": [{"role": "system", "content": "a\n\nb"}, {"role": "user", "content": "hi"}],
                "tools": [{"type": "function", "function": {"name": "f", "description": "d",
                    "parameters": {"type": "object"}, "strict": true}}],
                "tool_choice": "required", "parallel_tool_calls": false, "reasoning_effort": "high",
                "response_format": {"type": "json_schema", "json_schema": schema}})
        );
        for (choice, expected) in [
            (json!({"type": "auto"}), json!("auto")),
            (json!({"type": "none"}), json!("none")),
            (
                json!({"type": "tool", "name": "f"}),
                json!({"type": "function", "function": {"name": "f"}}),
            ),
        ] {
            let mut body = body.clone();
            body["tool_choice"] = choice;
            assert_eq!(chat(&body)["tool_choice"], expected);
        }
    }

    #[test]
    fn documents_become_files_and_texts() {
        let document = |source: &Value| json!({"type": "document", "title": "T", "context": "C", "source": source});
        for (block, part) in [
            (
                document(
                    &json!({"type": "base64", "media_type": "application/pdf", "data": "AA=="}),
                ),
                json!({"type": "file", "file": {"filename": "T", "file_data": "data:application/pdf;base64,AA=="}}),
            ),
            (
                document(&json!({"type": "text", "media_type": "text/plain", "data": "D"})),
                json!({"type": "text", "text": "T\nC\nD"}),
            ),
            (
                json!({"type": "search_result", "source": "S", "title": "T", "content": [{"type": "text", "text": "D"}]}),
                json!({"type": "text", "text": "T (S)\nD"}),
            ),
        ] {
            let image =
                json!({"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}});
            let chat = messages(&json!([{"role": "user", "content": [block, image]}]));
            let shown = json!({"type": "image_url", "image_url": {"url": "https://a.b/c.png"}});
            assert_eq!(chat[0]["content"], json!([part, shown]));
        }
    }

    #[test]
    fn rejects_untranslatable_content_by_pointer() {
        let by_url =
            json!({"type": "document", "source": {"type": "url", "url": "https://a.b/c.pdf"}});
        let result = json!({"type": "tool_result", "tool_use_id": "t", "content": [by_url]});
        for (body, pointer) in [
            (
                json!({"messages": [{"role": "user", "content": [by_url]}]}),
                "/messages/0/content/0/source",
            ),
            (
                json!({"messages": [{"role": "user", "content": [result]}]}),
                "/messages/0/content/0/content/0/source",
            ),
            (
                json!({"messages": [], "tools": [{"type": "bash_20250124", "name": "bash"}]}),
                "/tools/0/type",
            ),
        ] {
            let refused = chat_request(body.as_object().unwrap(), "talker").unwrap_err();
            assert_eq!(refused.pointer, pointer);
            assert!(
                refused.message.contains("provider of talker"),
                "{}",
                refused.message
            );
        }
    }
}
