//! Requests of both APIs.

use protocol::JsonObject;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::machine::HistoryMessage;
use crate::openai_agent::config::{Config, OpenAiApi};
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::turn::{ConnectorTurn, FileContent, TurnFile};
use crate::upstream::failure::ConnectorFailure;

/// The call of a turn in a conversation of the server.
pub(super) fn request(
    config: &Config,
    turn: &ConnectorTurn,
    history: &[HistoryMessage],
    conversation: Option<&str>,
) -> Result<PlatformRequest, ConnectorFailure> {
    let (path, mut body) = match config.api {
        OpenAiApi::Chat => (&["chat", "completions"][..], chat(config, turn, history)?),
        OpenAiApi::Responses => (&["responses"][..], responses(config, turn, history)?),
    };
    if !config.model.is_empty() {
        body.insert("model".to_owned(), json!(config.model));
    }
    if !config.user_field.is_empty() {
        body.insert(config.user_field.clone(), json!(turn.user));
    }
    if let Some(id) = conversation {
        let field = config
            .conversation
            .as_ref()
            .map(|field| field.name.as_str());
        body.insert(
            field.unwrap_or("previous_response_id").to_owned(),
            json!(id),
        );
    }
    // The operator's members replace ours; `null` removes one that a server refuses.
    for (name, value) in &config.extra {
        match value {
            Value::Null => body.remove(name),
            value => body.insert(name.clone(), value.clone()),
        };
    }
    let request = PlatformRequest::post(below(&config.base, path), body);
    let request = match &config.credential {
        None => request,
        Some((header, value)) => request.header(*header, value.expose_secret()),
    };
    Ok(request.framed(ResponseFraming::Sse))
}

fn chat(
    config: &Config,
    turn: &ConnectorTurn,
    history: &[HistoryMessage],
) -> Result<JsonObject, ConnectorFailure> {
    let mut messages = Vec::new();
    if !config.instructions.is_empty() {
        messages.push(json!({"role": "system", "content": config.instructions}));
    }
    messages.extend(
        history
            .iter()
            .map(|message| json!({"role": message.role, "content": message.text})),
    );
    messages.push(json!({"role": "user", "content": content(turn, "text", chat_part)?}));
    let stream_options = json!({"include_usage": true});
    Ok(members([
        ("messages", json!(messages)),
        ("stream", json!(true)),
        ("stream_options", stream_options),
    ]))
}

fn responses(
    config: &Config,
    turn: &ConnectorTurn,
    history: &[HistoryMessage],
) -> Result<JsonObject, ConnectorFailure> {
    let mut input: Vec<_> = history
        .iter()
        .map(|message| json!({"role": message.role, "content": message.text}))
        .collect();
    input.push(json!({"role": "user", "content": content(turn, "input_text", responses_part)?}));
    let mut body = members([
        ("input", json!(input)),
        ("stream", json!(true)),
        ("store", json!(config.chains_responses)),
    ]);
    if !config.instructions.is_empty() {
        body.insert("instructions".to_owned(), json!(config.instructions));
    }
    Ok(body)
}

fn members<const N: usize>(members: [(&str, Value); N]) -> JsonObject {
    members
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

type InputPart = fn(&TurnFile) -> Result<Value, ConnectorFailure>;

/// The text, or parts if there are files.
fn content(turn: &ConnectorTurn, kind: &str, part: InputPart) -> Result<Value, ConnectorFailure> {
    if turn.files.is_empty() {
        return Ok(json!(turn.text));
    }
    let text = (!turn.text.is_empty()).then(|| json!({"type": kind, "text": turn.text}));
    let files = turn.files.iter().map(part);
    text.into_iter().map(Ok).chain(files).collect()
}

fn chat_part(file: &TurnFile) -> Result<Value, ConnectorFailure> {
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
        file.bytes()?;
        let url = file.url()?;
        let data = url.split_once(',').map_or("", |(_, data)| data);
        return Ok(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}));
    }
    file.bytes()?;
    Ok(json!({"type": "file", "file": {"filename": file.name, "file_data": file.url()?}}))
}

fn responses_part(file: &TurnFile) -> Result<Value, ConnectorFailure> {
    if file.mime_type.starts_with("image/") {
        return Ok(json!({"type": "input_image", "image_url": file.url()?}));
    }
    if let FileContent::Url(url) = &file.content {
        return Ok(json!({"type": "input_file", "file_url": url}));
    }
    Ok(json!({"type": "input_file", "filename": file.name, "file_data": file.url()?}))
}
