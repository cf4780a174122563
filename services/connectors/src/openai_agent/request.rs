//! Requests of both APIs.

use protocol::JsonObject;
use serde_json::{Value, json};

use crate::openai_agent::config::{Config, OpenAiApi};
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::Mapped;
use crate::upstream::json::object;

/// The request of a message in a conversation of the server.
pub(super) fn request(config: &Config, run: &ConnectorRun) -> PlatformRequest {
    let (path, mut body) = match config.api {
        OpenAiApi::Chat => (&["chat", "completions"][..], chat(config, run)),
        OpenAiApi::Responses => (&["responses"][..], responses(config, run)),
    };
    if !config.model.is_empty() {
        body.insert("model".to_owned(), json!(config.model));
    }
    if !config.user_field.is_empty() {
        body.insert(config.user_field.clone(), json!(run.turn.user));
    }
    if let Some(id) = run.conversation.id() {
        let field = config.conversation.as_ref();
        let field = field.map_or("previous_response_id", |field| &field.name);
        body.insert(field.to_owned(), json!(id));
    }
    // The operator's members replace ours; `null` removes one that a server refuses.
    for (name, value) in &config.extra {
        match value {
            Value::Null => body.remove(name),
            value => body.insert(name.clone(), value.clone()),
        };
    }
    let request = PlatformRequest::post(below(&config.base, path), body);
    let request = request.authorized(config.credential.as_ref());
    request.framed(ResponseFraming::Sse)
}

fn chat(config: &Config, run: &ConnectorRun) -> JsonObject {
    let mut messages = Vec::new();
    if !config.instructions.is_empty() {
        messages.push(json!({"role": "system", "content": config.instructions}));
    }
    messages.extend(run.chat_history());
    messages.push(json!({"role": "user", "content": run.content("text")}));
    object(json!({
        "messages": messages,
        "stream": true,
        "stream_options": {"include_usage": true},
    }))
}

fn responses(config: &Config, run: &ConnectorRun) -> JsonObject {
    let mut input = run.chat_history();
    input.push(json!({"role": "user", "content": run.content("input_text")}));
    let mut body = object(json!({
        "input": input,
        "stream": true,
        "store": config.chains_responses,
    }));
    if !config.instructions.is_empty() {
        body.insert("instructions".to_owned(), json!(config.instructions));
    }
    body
}

/// A file as a part of a chat message.
pub(super) fn chat_part(file: &TurnFile) -> Mapped<Value> {
    let format = match file.mime_type.as_str() {
        "audio/wav" | "audio/x-wav" => Some("wav"),
        "audio/mpeg" | "audio/mp3" => Some("mp3"),
        _ => None,
    };
    if file.mime_type.starts_with("image/") {
        return Ok(json!({"type": "image_url", "image_url": {"url": file.url()?}}));
    }
    if let Some(format) = format {
        // Audio and files must be sent as bytes: Chat Completions accepts no addresses for them.
        let data = file.base64()?;
        return Ok(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}));
    }
    file.bytes()?;
    Ok(json!({"type": "file", "file": {"filename": file.name, "file_data": file.url()?}}))
}

/// A file as a part of a response's input.
pub(super) fn responses_part(file: &TurnFile) -> Mapped<Value> {
    if file.mime_type.starts_with("image/") {
        return Ok(json!({"type": "input_image", "image_url": file.url()?}));
    }
    if let Some(url) = file.address() {
        return Ok(json!({"type": "input_file", "file_url": url}));
    }
    Ok(json!({"type": "input_file", "filename": file.name, "file_data": file.url()?}))
}
