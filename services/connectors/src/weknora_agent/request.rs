//! Requests to WeKnora.

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::{ConnectorFailure, Mapped};
use crate::upstream::json::object;
use crate::weknora_agent::config::{Config, WeKnoraAppType};

/// `POST /sessions`.
pub(super) fn session(config: &Config, user: &str) -> PlatformRequest {
    let body = json!({"title": format!("IM Chat - {user}")});
    post(config, &["sessions"], body)
}

/// `POST /agent-chat/{session}`, or `POST /knowledge-chat/{session}`.
pub(super) fn chat(config: &Config, run: &ConnectorRun, session: &str) -> PlatformRequest {
    let mut body = json!({
        "query": run.query(run.turn.text_or(&config.base_prompt)),
        "channel": "im",
        "agent_id": config.agent,
    });
    if !config.knowledge_bases.is_empty() {
        body["knowledge_base_ids"] = json!(config.knowledge_bases);
    }
    if !run.files.is_empty() {
        body["images"] = json!(run.files);
    }
    let path = match config.app {
        WeKnoraAppType::Agent => {
            body["agent_enabled"] = json!(true);
            if config.searches_web {
                body["web_search_enabled"] = json!(true);
            }
            "agent-chat"
        }
        WeKnoraAppType::Chat => "knowledge-chat",
    };
    post(config, &[path, session], body).framed(ResponseFraming::Sse)
}

/// An image of the message, by its bytes.
pub(super) fn image(file: &TurnFile) -> Mapped<Value> {
    if !file.mime_type.starts_with("image/") {
        let fault = "cannot be handed over: WeKnora accepts images only";
        return Err(ConnectorFailure::upload(&file.name, fault));
    }
    file.bytes()?;
    Ok(json!({"data": file.url()?}))
}

/// `POST /sessions/{session}/stop`.
pub(super) fn stop(config: &Config, session: &str, message: &str) -> PlatformRequest {
    post(
        config,
        &["sessions", session, "stop"],
        json!({"message_id": message}),
    )
}

fn post(config: &Config, path: &[&str], body: Value) -> PlatformRequest {
    let request = PlatformRequest::post(below(&config.base, path), object(body));
    request.header("x-api-key", config.key.expose_secret())
}
