//! Chat completion requests as requests of this API.

use protocol::JsonObject;
use serde_json::{Value, json};

use super::reader::signature_in;
use super::thinking::{GeminiVersion, config_of};
use crate::chat::call_input;
use crate::{BOUNDS, FormatError, list};

/// Signature for calls of other models, which the API then accepts.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";
/// Names in `generationConfig` of members that pass unchanged.
const PASSED: [(&str, &str); 6] = [
    ("temperature", "temperature"),
    ("top_p", "topP"),
    ("top_k", "topK"),
    ("seed", "seed"),
    ("presence_penalty", "presencePenalty"),
    ("frequency_penalty", "frequencyPenalty"),
];

/// The body of `generateContent` for a chat completion. The model is part of the path.
pub fn generate_content(body: &JsonObject) -> Result<JsonObject, FormatError> {
    check(body)?;
    let upstream = body
        .get("model")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let mut request = JsonObject::new();
    let (system, contents) = contents(body.get("messages"), upstream)?;
    if !system.is_empty() {
        request.insert(
            "systemInstruction".to_owned(),
            json!({"parts": [{"text": system}]}),
        );
    }
    request.insert("contents".to_owned(), Value::Array(contents));
    let functions: Vec<_> = list(body.get("tools")).iter().map(declaration).collect();
    if !functions.is_empty() {
        request.insert(
            "tools".to_owned(),
            json!([{"functionDeclarations": functions}]),
        );
        if let Some(calling) = body.get("tool_choice").and_then(calling) {
            request.insert(
                "toolConfig".to_owned(),
                json!({"functionCallingConfig": calling}),
            );
        }
    }
    let config = generation_config(body, upstream);
    if !config.is_empty() {
        request.insert("generationConfig".to_owned(), Value::Object(config));
    }
    Ok(request)
}

/// Refuses parameters that have no counterpart and would change the answer.
fn check(body: &JsonObject) -> Result<(), FormatError> {
    let unsupported = |what: &str| Err(FormatError::Unsupported(what.to_owned()));
    if body.get("n").and_then(Value::as_u64).is_some_and(|n| n > 1) {
        return unsupported("several answers (n)");
    }
    for (old, new) in [("functions", "tools"), ("function_call", "tool_choice")] {
        if body.get(old).is_some_and(|value| !value.is_null()) {
            return unsupported(&format!("{old}; send {new} instead"));
        }
    }
    let tools = list(body.get("tools"));
    if !tools
        .iter()
        .all(|tool| tool["function"]["name"].is_string())
    {
        return unsupported("a tool that is no function with a name");
    }
    let choice = body.get("tool_choice").filter(|choice| !choice.is_null());
    if choice.is_some_and(|choice| calling(choice).is_none()) {
        return unsupported("this tool_choice; use auto, required, none or a function by its name");
    }
    Ok(())
}

fn generation_config(body: &JsonObject, upstream: &str) -> JsonObject {
    let mut config = JsonObject::new();
    for (from, to) in PASSED {
        if let Some(value) = body.get(from).filter(|value| !value.is_null()) {
            config.insert(to.to_owned(), value.clone());
        }
    }
    if let Some(max_tokens) = BOUNDS.iter().find_map(|key| body.get(*key)?.as_u64()) {
        config.insert("maxOutputTokens".to_owned(), json!(max_tokens));
    }
    match body.get("stop") {
        Some(stop @ Value::String(_)) => {
            config.insert("stopSequences".to_owned(), json!([stop]));
        }
        Some(Value::Array(stops)) if !stops.is_empty() => {
            config.insert("stopSequences".to_owned(), json!(stops));
        }
        _ => {}
    }
    let format = body.get("response_format").unwrap_or(&Value::Null);
    if matches!(format["type"].as_str(), Some("json_object" | "json_schema")) {
        config.insert("responseMimeType".to_owned(), json!("application/json"));
        let schema = &format["json_schema"]["schema"];
        if schema.is_object() {
            config.insert("responseJsonSchema".to_owned(), schema.clone());
        }
    }
    let effort = body.get("reasoning_effort").and_then(Value::as_str);
    if let Some(thinking) = effort.and_then(|effort| config_of(effort, upstream)) {
        config.insert("thinkingConfig".to_owned(), thinking);
    }
    config
}

fn declaration(tool: &Value) -> Value {
    let function = &tool["function"];
    let mut declared =
        json!({"name": function["name"], "description": text(&function["description"])});
    // An object without properties is no valid schema for older models.
    let parameters = &function["parameters"];
    let has_members = |name: &str| match &parameters[name] {
        Value::Object(members) => !members.is_empty(),
        Value::Array(schemas) => !schemas.is_empty(),
        value => value.is_string(),
    };
    if ["properties", "anyOf", "oneOf", "allOf", "$ref"]
        .iter()
        .any(|name| has_members(name))
    {
        declared["parametersJsonSchema"] = parameters.clone();
    }
    declared
}

fn calling(choice: &Value) -> Option<Value> {
    match choice {
        Value::String(word) => match word.as_str() {
            "auto" => Some(json!({"mode": "AUTO"})),
            "required" => Some(json!({"mode": "ANY"})),
            "none" => Some(json!({"mode": "NONE"})),
            _ => None,
        },
        choice => {
            let name = choice["function"]["name"].as_str()?;
            Some(json!({"mode": "ANY", "allowedFunctionNames": [name]}))
        }
    }
}

/// The system prompt, and alternating contents of user and model.
fn contents(messages: Option<&Value>, upstream: &str) -> Result<(String, Vec<Value>), FormatError> {
    let mut system = Vec::new();
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    // Names of the calls by id: results have an id only.
    let mut names: Vec<(&str, &str)> = Vec::new();
    for message in list(messages) {
        let role = message["role"].as_str().unwrap_or_default();
        let (side, parts) = match role {
            "system" | "developer" => {
                system.push(text(&message["content"]));
                continue;
            }
            "user" => ("user", parts(&message["content"])?),
            "tool" => ("user", function_response(message, &names)?),
            "assistant" => {
                let calls = list(message.get("tool_calls")).iter();
                names.extend(calls.filter_map(|call| {
                    Some((call["id"].as_str()?, call["function"]["name"].as_str()?))
                }));
                ("model", model_parts(message, upstream)?)
            }
            other => {
                let what =
                    format!("a message of role {other}; use system, user, assistant or tool");
                return Err(FormatError::Unsupported(what));
            }
        };
        match turns.last_mut() {
            // Merge into the last turn: results of parallel calls must be in one content.
            Some((last, all)) if *last == side => all.extend(parts),
            _ => turns.push((side, parts)),
        }
    }
    let turns = turns.into_iter().filter(|(_, parts)| !parts.is_empty());
    let contents = turns.map(|(role, parts)| json!({"role": role, "parts": parts}));
    Ok((system.join("\n\n"), contents.collect()))
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

/// Empty texts are dropped, because they cost a part and mean nothing.
fn parts(content: &Value) -> Result<Vec<Value>, FormatError> {
    let content = match content {
        Value::String(text) => return Ok(text_part(text).into_iter().collect()),
        Value::Array(parts) => parts,
        _ => return Ok(Vec::new()),
    };
    let parts = content.iter().map(part).collect::<Result<Vec<_>, _>>()?;
    Ok(parts.into_iter().flatten().collect())
}

fn text_part(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| json!({"text": text}))
}

fn part(part: &Value) -> Result<Option<Value>, FormatError> {
    let kind = part["type"].as_str().unwrap_or_default();
    let unsupported = || {
        let what =
            format!("a part `{kind}` of this shape; send text, images and files with their data");
        FormatError::Unsupported(what)
    };
    let url = match kind {
        "image_url" => part["image_url"]["url"].as_str(),
        "file" => part["file"]["file_data"].as_str(),
        "input_audio" => {
            let audio = &part["input_audio"];
            let (format, data) = (audio["format"].as_str(), audio["data"].as_str());
            let (format, data) = format.zip(data).ok_or_else(unsupported)?;
            return Ok(Some(inline_data(&format!("audio/{format}"), data)));
        }
        _ => return Ok(text_part(part["text"].as_str().ok_or_else(unsupported)?)),
    };
    let url = url.ok_or_else(unsupported)?;
    let inline = url
        .strip_prefix("data:")
        .and_then(|rest| rest.split_once(";base64,"));
    match inline {
        Some((kind, data)) => Ok(Some(inline_data(kind, data))),
        None if kind == "image_url" => by_url(url).map(Some),
        None => Err(unsupported()),
    }
}

fn inline_data(kind: &str, data: &str) -> Value {
    json!({"inlineData": {"mimeType": kind, "data": data}})
}

/// The API demands the media type of a URL.
fn by_url(url: &str) -> Result<Value, FormatError> {
    const KINDS: [(&str, &str); 5] = [
        ("png", "image/png"),
        ("jpg", "image/jpeg"),
        ("jpeg", "image/jpeg"),
        ("webp", "image/webp"),
        ("gif", "image/gif"),
    ];
    let path = url.split(['?', '#']).next().unwrap_or(url);
    let ending = path
        .rsplit('.')
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase();
    let kind = KINDS.iter().find(|(name, _)| *name == ending);
    let Some((_, kind)) = kind else {
        let what = "an image by a URL without an ending such as .png; send its data or an artifact";
        return Err(FormatError::Unsupported(what.to_owned()));
    };
    Ok(json!({"fileData": {"mimeType": kind, "fileUri": url}}))
}

fn function_response(message: &Value, names: &[(&str, &str)]) -> Result<Vec<Value>, FormatError> {
    let id = message["tool_call_id"].as_str().unwrap_or_default();
    // The newest call: servers without ids of their own repeat them.
    let name = names.iter().rfind(|(call, _)| *call == id);
    let Some((_, name)) = name else {
        let what = "a tool message whose tool_call_id is of no earlier call";
        return Err(FormatError::Unsupported(what.to_owned()));
    };
    let (texts, media): (Vec<_>, Vec<_>) = parts(&message["content"])?
        .into_iter()
        .partition(|part| part.get("text").is_some());
    let text: String = texts
        .iter()
        .filter_map(|part| part["text"].as_str())
        .collect();
    // An object stays one, so that the model reads its members.
    let response = match call_input(&text) {
        Value::Object(members)
            if text.trim_start().starts_with('{') && !members.contains_key("invalid_arguments") =>
        {
            Value::Object(members)
        }
        _ => json!({"output": text}),
    };
    let mut all = vec![json!({"functionResponse": {"id": id, "name": name, "response": response}})];
    all.extend(media);
    Ok(all)
}

fn model_parts(message: &Value, upstream: &str) -> Result<Vec<Value>, FormatError> {
    let mut all = parts(&message["content"])?;
    let calls = list(message.get("tool_calls"));
    if let (Some(last), Some(signature), true) =
        (all.last_mut(), signature_in(message), calls.is_empty())
    {
        last["thoughtSignature"] = signature.clone();
    }
    let demands = GeminiVersion::of_model(upstream).is_some_and(GeminiVersion::demands_signatures);
    for (n, call) in calls.iter().enumerate() {
        let function = &call["function"];
        let args = call_input(function["arguments"].as_str().unwrap_or_default());
        let mut part =
            json!({"functionCall": {"id": call["id"], "name": function["name"], "args": args}});
        match signature_in(call) {
            Some(signature) => part["thoughtSignature"] = signature.clone(),
            // Calls of other models have none; the first of a turn must have one.
            None if n == 0 && demands => part["thoughtSignature"] = json!(NO_SIGNATURE),
            None => {}
        }
        all.push(part);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(body: &Value) -> Result<Value, String> {
        let request = generate_content(body.as_object().unwrap());
        request
            .map(Value::Object)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn translates_conversations_with_tools_and_images() {
        let body = json!({"model": "gemini-3-pro", "temperature": 0.5, "top_p": 0.9, "stop": "END", "max_tokens": 4000,
        "reasoning_effort": "low", "tool_choice": "required", "stream": true,
        "tools": [{"type": "function", "function": {"name": "f", "description": "does", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
            {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}],
        "messages": [
            {"role": "system", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                {"type": "image_url", "image_url": {"url": "https://a.b/c.JPG?x=.png"}}]},
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "c1", "function": {"name": "f", "arguments": "{\"a\":1}"}, "extra_content": {"google": {"thought_signature": "S"}}},
                {"id": "c2", "function": {"name": "g", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "four"},
            {"role": "tool", "tool_call_id": "c2", "content": "{\"b\":2}"},
            {"role": "user", "content": "continue"},
            {"role": "assistant", "content": "ok", "extra_content": {"google": {"thought_signature": "T"}}},
            {"role": "assistant", "tool_calls": [{"id": "c3", "function": {"name": "g", "arguments": "{}"}}]},
        ]});
        let call =
            |id: &str, name: &str, args: Value| json!({"id": id, "name": name, "args": args});
        assert_eq!(
            request(&body).unwrap(),
            json!({
                "systemInstruction": {"parts": [{"text": "be kind"}]},
                "generationConfig": {"temperature": 0.5, "topP": 0.9, "stopSequences": ["END"], "maxOutputTokens": 4000,
                    "thinkingConfig": {"thinkingLevel": "low", "includeThoughts": true}},
                "tools": [{"functionDeclarations": [
                    {"name": "f", "description": "does", "parametersJsonSchema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
                    {"name": "g", "description": ""}]}],
                "toolConfig": {"functionCallingConfig": {"mode": "ANY"}},
                "contents": [
                    {"role": "user", "parts": [{"text": "look"}, {"inlineData": {"mimeType": "image/png", "data": "AA=="}},
                        {"fileData": {"mimeType": "image/jpeg", "fileUri": "https://a.b/c.JPG?x=.png"}}]},
                    {"role": "model", "parts": [{"functionCall": call("c1", "f", json!({"a": 1})), "thoughtSignature": "S"},
                        {"functionCall": call("c2", "g", json!({}))}]},
                    {"role": "user", "parts": [
                        {"functionResponse": {"id": "c1", "name": "f", "response": {"output": "four"}}},
                        {"functionResponse": {"id": "c2", "name": "g", "response": {"b": 2}}}, {"text": "continue"}]},
                    {"role": "model", "parts": [{"text": "ok", "thoughtSignature": "T"},
                        {"functionCall": call("c3", "g", json!({})), "thoughtSignature": NO_SIGNATURE}]},
                ]
            })
        );
    }

    #[test]
    fn passes_answer_schemas_and_files() {
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}});
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        let file =
            json!({"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBERi0"}});
        let sound = json!({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}});
        let body = json!({"model": "gemini-2.0-flash", "response_format": format,
            "messages": [{"role": "user", "content": [file, sound]}]});
        let request = request(&body).unwrap();
        assert_eq!(
            request["generationConfig"],
            json!({"responseMimeType": "application/json", "responseJsonSchema": schema})
        );
        assert_eq!(
            request["contents"][0]["parts"],
            json!([{"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0"}},
                {"inlineData": {"mimeType": "audio/wav", "data": "AA"}}])
        );
    }

    #[test]
    fn refuses_requests_without_counterpart() {
        let user = |content: Value| json!({"messages": [{"role": "user", "content": content}]});
        for (body, words) in [
            (json!({"n": 2}), "several answers"),
            (json!({"functions": [{}]}), "send tools instead"),
            (
                json!({"tools": [{"type": "custom", "custom": {}}]}),
                "no function",
            ),
            (json!({"tool_choice": "any"}), "this tool_choice"),
            (json!({"messages": [{"role": "robot"}]}), "role robot"),
            (
                json!({"messages": [{"role": "tool", "tool_call_id": "x"}]}),
                "no earlier call",
            ),
            (
                user(json!([{"type": "file", "file": {"file_id": "x"}}])),
                "a part `file`",
            ),
            (
                user(json!([{"type": "image_url", "image_url": {"url": "https://a.b/c"}}])),
                "without an ending",
            ),
        ] {
            let refused = request(&body).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
