//! Requests to Tbox.

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::machine::HistoryMessage;
use crate::request::{FilePart, PlatformRequest, ResponseFraming, below};
use crate::tbox_agent::config::Config;
use crate::turn::{ConnectorTurn, TurnFile};
use crate::upstream::conversation::with_history;
use crate::upstream::failure::ConnectorFailure;
use crate::upstream::json::object;

/// `POST /api/chat`, within a conversation or with a new one.
pub(super) fn chat(
    config: &Config,
    turn: &ConnectorTurn,
    files: &[Value],
    history: &[HistoryMessage],
    conversation: Option<&str>,
) -> PlatformRequest {
    let mut body = object(json!({
        "appId": config.app_id,
        "query": with_history(history, &turn.text),
        "userId": turn.user,
        "stream": true,
        "searchEngine": false,
    }));
    if let Some(id) = conversation {
        body.insert("conversationId".to_owned(), json!(id));
    }
    if !files.is_empty() {
        body.insert("files".to_owned(), json!(files));
    }
    let request = PlatformRequest::post(below(&config.base, &["api", "chat"]), body);
    signed(request, config).framed(ResponseFraming::Sse)
}

/// `POST /api/file/upload`.
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
    let url = below(&config.base, &["api", "file", "upload"]);
    Ok(signed(
        PlatformRequest::upload(url, Vec::new(), part),
        config,
    ))
}

/// An uploaded file in Tbox's form.
pub(super) fn part(file: &TurnFile, id: &str) -> Value {
    let kind = match file.mime_type.split('/').next() {
        Some("image") => "IMAGE",
        Some("audio") => "AUDIO",
        Some("video") => "VIDEO",
        _ => "FILE",
    };
    json!({"fileId": id, "type": kind})
}

/// Adds the key, which Tbox expects without a scheme.
fn signed(request: PlatformRequest, config: &Config) -> PlatformRequest {
    let request = request.header("authorization", config.key.expose_secret());
    request.header("source", "AGENT_SDK")
}
