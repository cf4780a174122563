//! Requests to Coze.

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::coze_agent::config::Config;
use crate::machine::HistoryMessage;
use crate::request::{FilePart, PlatformRequest, ResponseFraming, below};
use crate::turn::{ConnectorTurn, FileContent, TurnFile};
use crate::upstream::failure::ConnectorFailure;
use crate::upstream::json::object;

/// Maximum messages of one chat, a limit of Coze.
const MAX_MESSAGES: usize = 100;

/// `POST /v3/chat`, within a conversation or with a new one.
pub(super) fn chat(
    config: &Config,
    turn: &ConnectorTurn,
    files: &[Value],
    history: &[HistoryMessage],
    conversation: Option<&str>,
) -> PlatformRequest {
    let mut url = below(&config.base, &["v3", "chat"]);
    if let Some(id) = conversation {
        url.query_pairs_mut().append_pair("conversation_id", id);
    }
    let mut body = object(json!({
        "bot_id": config.bot,
        "user_id": turn.user,
        "stream": true,
        "auto_save_history": config.saves_history,
    }));
    // Drop the oldest, and leave space for the current message.
    let skipped = history.len().saturating_sub(MAX_MESSAGES - 1);
    let history = history.iter().skip(skipped).map(earlier);
    let messages: Vec<_> = history.chain(message(turn, files)).collect();
    if !messages.is_empty() {
        body.insert("additional_messages".to_owned(), json!(messages));
    }
    if let (Some(name), Some(token)) = (&config.host_tools, &turn.run_token) {
        let variables = json!({name.as_str(): token.expose_secret()});
        body.insert("custom_variables".to_owned(), variables);
    }
    let request = PlatformRequest::post(url, body).bearer(Some(&config.key));
    request.framed(ResponseFraming::Sse)
}

fn earlier(message: &HistoryMessage) -> Value {
    let kind = if message.role == "user" {
        "question"
    } else {
        "answer"
    };
    json!({"role": message.role, "type": kind, "content": message.text, "content_type": "text"})
}

/// The user's message; `None` without text and files.
fn message(turn: &ConnectorTurn, files: &[Value]) -> Option<Value> {
    let has_text = !turn.text.trim().is_empty();
    if files.is_empty() {
        return has_text
            .then(|| json!({"role": "user", "content": turn.text, "content_type": "text"}));
    }
    let text = has_text.then(|| json!({"type": "text", "text": turn.text}));
    let parts: Vec<_> = text.into_iter().chain(files.iter().cloned()).collect();
    // Coze expects the parts as a text of JSON.
    let content = json!(parts).to_string();
    Some(json!({"role": "user", "content": content, "content_type": "object_string"}))
}

/// `POST /v1/files/upload`.
pub(super) fn upload(
    config: &Config,
    file: &TurnFile,
) -> Result<PlatformRequest, ConnectorFailure> {
    let part = FilePart {
        field: "file",
        name: file.name.clone(),
        mime_type: file.mime_type.clone(),
        bytes: file.bytes()?,
    };
    let url = below(&config.base, &["v1", "files", "upload"]);
    let request = PlatformRequest::upload(url, Vec::new(), part);
    Ok(request.bearer(Some(&config.key)))
}

/// A part of the message: a file by its id or its address.
pub(super) fn part(file: &TurnFile, key: &str, value: &str) -> Value {
    let kind = match file.mime_type.split('/').next() {
        Some("image") => "image",
        Some("audio") => "audio",
        _ => "file",
    };
    json!({"type": kind, key: value})
}

/// A file that Coze fetches itself, if only its address is available.
pub(super) fn remote_part(file: &TurnFile) -> Option<Value> {
    match &file.content {
        FileContent::Url(url) => Some(part(file, "file_url", url)),
        FileContent::Bytes(_) | FileContent::Artifact(_) => None,
    }
}

/// `POST /v3/chat/cancel`.
pub(super) fn cancel(config: &Config, conversation: &str, chat: &str) -> PlatformRequest {
    let url = below(&config.base, &["v3", "chat", "cancel"]);
    let body = object(json!({"conversation_id": conversation, "chat_id": chat}));
    PlatformRequest::post(url, body).bearer(Some(&config.key))
}
