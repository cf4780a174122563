//! Requests to Dify.

use protocol::JsonObject;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::dify_agent::config::{Config, DifyAppType};
use crate::machine::{HistoryMessage, OutputQueue};
use crate::request::{FilePart, PlatformRequest, ResponseFraming, below};
use crate::turn::{ConnectorTurn, FileContent, TurnFile};
use crate::upstream::conversation::with_history;
use crate::upstream::failure::ConnectorFailure;
use crate::upstream::json::object;

/// `POST /chat-messages`.
pub(super) fn chat(
    config: &Config,
    turn: &ConnectorTurn,
    files: &[Value],
    history: &[HistoryMessage],
    conversation: Option<&str>,
) -> PlatformRequest {
    // Dify refuses an empty query, and a message of files only has no text.
    let text = if turn.text.trim().is_empty() {
        &config.base_prompt
    } else {
        &turn.text
    };
    let mut body = json!({
        "inputs": inputs(config, turn, JsonObject::new()),
        "query": with_history(history, text),
        "user": turn.user,
        "response_mode": "streaming",
        "files": files,
    });
    // Some versions refuse an empty id.
    if let Some(id) = conversation {
        body["conversation_id"] = json!(id);
    }
    post(config, &["chat-messages"], body).framed(ResponseFraming::Sse)
}

/// `POST /workflows/run`. Workflows have no conversation of their own, so they get two stable ids as inputs.
pub(super) fn workflow(
    config: &Config,
    turn: &ConnectorTurn,
    files: &[Value],
    out: &mut OutputQueue,
) -> PlatformRequest {
    let mut named = JsonObject::new();
    named.insert(config.text_input.clone(), json!(turn.text));
    for (input, key, kind) in [
        (
            "langbot_session_id",
            "external.workflow_session_id",
            "session",
        ),
        (
            "langbot_conversation_id",
            "external.workflow_conversation_id",
            "conversation",
        ),
    ] {
        let stored = turn.state.get(key).and_then(Value::as_str);
        let id = stored.map_or_else(
            || format!("dify_{kind}_{}", turn.run_id.replace('-', "")),
            str::to_owned,
        );
        if stored.is_none() {
            out.remember(key, id.as_str());
        }
        named.insert(input.to_owned(), json!(id));
    }
    let body = json!({
        "inputs": inputs(config, turn, named),
        "user": turn.user,
        "response_mode": "streaming",
        "files": files,
    });
    post(config, &["workflows", "run"], body).framed(ResponseFraming::Sse)
}

/// The inputs, later ones taking precedence: named inputs, fixed ones, parameters of the entry, the run token.
fn inputs(config: &Config, turn: &ConnectorTurn, mut inputs: JsonObject) -> JsonObject {
    let further = config.inputs.iter().chain(&turn.params);
    inputs.extend(further.map(|(name, value)| (name.clone(), value.clone())));
    if let (Some(name), Some(token)) = (&config.host_tools, &turn.run_token) {
        inputs.insert(name.clone(), json!(token.expose_secret()));
    }
    inputs
}

/// The call that stops a task.
pub(super) fn stop(config: &Config, user: &str, task: &str) -> PlatformRequest {
    let path = match config.app {
        DifyAppType::Workflow => ["workflows", "tasks", task, "stop"].to_vec(),
        DifyAppType::Chat | DifyAppType::Agent => ["chat-messages", task, "stop"].to_vec(),
    };
    post(config, &path, json!({"user": user}))
}

/// `POST /form/human_input/{token}`.
pub(super) fn submit(config: &Config, token: &str, body: JsonObject) -> PlatformRequest {
    post(config, &["form", "human_input", token], Value::Object(body))
}

/// `GET /workflow/{run}/events`: replays past events and continues with new ones.
pub(super) fn resume(config: &Config, user: &str, run: &str) -> PlatformRequest {
    let mut url = below(&config.base, &["workflow", run, "events"]);
    url.query_pairs_mut()
        .append_pair("user", user)
        .append_pair("include_state_snapshot", "true")
        .append_pair("continue_on_pause", "true");
    PlatformRequest::get(url)
        .bearer(Some(&config.key))
        .framed(ResponseFraming::Sse)
}

/// `POST /files/upload`.
pub(super) fn upload(
    config: &Config,
    user: &str,
    file: &TurnFile,
) -> Result<PlatformRequest, ConnectorFailure> {
    let part = FilePart {
        field: "file",
        name: file.name.clone(),
        mime_type: file.mime_type.clone(),
        bytes: file.bytes()?,
    };
    let request = PlatformRequest::upload(
        below(&config.base, &["files", "upload"]),
        vec![("user", user.to_owned())],
        part,
    );
    Ok(request.bearer(Some(&config.key)))
}

/// An uploaded file in Dify's form.
pub(super) fn local_file(file: &TurnFile, id: &str) -> Value {
    json!({"type": kind_of(file), "transfer_method": "local_file", "upload_file_id": id})
}

/// A file that Dify fetches itself, if only its address is available.
pub(super) fn remote_file(file: &TurnFile) -> Option<Value> {
    let FileContent::Url(url) = &file.content else {
        return None;
    };
    Some(json!({"type": kind_of(file), "transfer_method": "remote_url", "url": url}))
}

fn kind_of(file: &TurnFile) -> &'static str {
    match file.mime_type.split('/').next() {
        Some("image") => "image",
        Some("audio") => "audio",
        Some("video") => "video",
        _ => "document",
    }
}

fn post(config: &Config, path: &[&str], body: Value) -> PlatformRequest {
    PlatformRequest::post(below(&config.base, path), object(body)).bearer(Some(&config.key))
}
