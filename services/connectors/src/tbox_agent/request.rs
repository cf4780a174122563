//! Requests to Tbox.

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::run::ConnectorRun;
use crate::tbox_agent::config::Config;
use crate::turn::TurnFile;
use crate::upstream::failure::Mapped;
use crate::upstream::json::object;

/// `POST /api/chat`, within a conversation or with a new one.
pub(super) fn chat(config: &Config, run: &ConnectorRun) -> PlatformRequest {
    let mut body = object(json!({
        "appId": config.app_id,
        "query": run.query(&run.turn.text),
        "userId": run.turn.user,
        "stream": true,
        "searchEngine": false,
    }));
    if let Some(id) = run.conversation.id() {
        body.insert("conversationId".to_owned(), json!(id));
    }
    if !run.files.is_empty() {
        body.insert("files".to_owned(), json!(run.files));
    }
    let request = PlatformRequest::post(below(&config.base, &["api", "chat"]), body);
    signed(request, config).framed(ResponseFraming::Sse)
}

/// `POST /api/file/upload`.
pub(super) fn upload(config: &Config, file: &TurnFile) -> Mapped<PlatformRequest> {
    let url = below(&config.base, &["api", "file", "upload"]);
    let request = PlatformRequest::upload(url, Vec::new(), file.part()?);
    Ok(signed(request, config))
}

/// An uploaded file in Tbox's form.
pub(super) fn part(file: &TurnFile, id: &str) -> Value {
    let kind = file.kind(["IMAGE", "AUDIO", "VIDEO", "FILE"]);
    json!({"fileId": id, "type": kind})
}

/// Adds the key, which Tbox expects without a scheme.
fn signed(request: PlatformRequest, config: &Config) -> PlatformRequest {
    let request = request.header("authorization", config.key.expose_secret());
    request.header("source", "AGENT_SDK")
}
