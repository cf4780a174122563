//! Requests to Coze.

use serde_json::{Value, json};

use crate::coze_agent::config::Config;
use crate::machine::HistoryMessage;
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::Mapped;
use crate::upstream::json::object;

/// Maximum messages of one chat, a limit of Coze.
const MAX_MESSAGES: usize = 100;

/// `POST /v3/chat`, within a conversation or with a new one.
pub(super) fn chat(config: &Config, run: &ConnectorRun) -> PlatformRequest {
    let mut url = below(&config.base, &["v3", "chat"]);
    if let Some(id) = run.conversation.id() {
        url.query_pairs_mut().append_pair("conversation_id", id);
    }
    let mut body = object(json!({
        "bot_id": config.bot,
        "user_id": run.turn.user,
        "stream": true,
        "auto_save_history": config.saves_history,
    }));
    // Drop the oldest, and leave space for the current message.
    let skipped = run.history.len().saturating_sub(MAX_MESSAGES - 1);
    let history = run.history.iter().skip(skipped).map(earlier);
    let messages: Vec<_> = history.chain(message(run)).collect();
    if !messages.is_empty() {
        body.insert("additional_messages".to_owned(), json!(messages));
    }
    if let Some(variable) = run.turn.host_tools(config.host_tools.as_ref()) {
        let variables = Value::Object([variable].into_iter().collect());
        body.insert("custom_variables".to_owned(), variables);
    }
    let request = PlatformRequest::post(url, body).bearer(&config.key);
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
fn message(run: &ConnectorRun) -> Option<Value> {
    let text = &run.turn.text;
    let has_text = !text.trim().is_empty();
    if run.files.is_empty() {
        return has_text.then(|| json!({"role": "user", "content": text, "content_type": "text"}));
    }
    let text = has_text.then(|| json!({"type": "text", "text": text}));
    let parts: Vec<_> = text.iter().chain(&run.files).collect();
    // Coze expects the parts as a text of JSON.
    let content = json!(parts).to_string();
    Some(json!({"role": "user", "content": content, "content_type": "object_string"}))
}

/// `POST /v1/files/upload`.
pub(super) fn upload(config: &Config, file: &TurnFile) -> Mapped<PlatformRequest> {
    let url = below(&config.base, &["v1", "files", "upload"]);
    let request = PlatformRequest::upload(url, Vec::new(), file.part()?);
    Ok(request.bearer(&config.key))
}

/// A part of the message: a file by its id or its address.
pub(super) fn part(file: &TurnFile, key: &str, value: &str) -> Value {
    json!({"type": file.kind(["image", "audio", "file", "file"]), key: value})
}

/// `POST /v3/chat/cancel`.
pub(super) fn cancel(config: &Config, conversation: &str, chat: &str) -> PlatformRequest {
    let url = below(&config.base, &["v3", "chat", "cancel"]);
    let body = object(json!({"conversation_id": conversation, "chat_id": chat}));
    PlatformRequest::post(url, body).bearer(&config.key)
}
