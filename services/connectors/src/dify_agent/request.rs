//! Requests to Dify.

use protocol::JsonObject;
use serde_json::{Value, json};

use crate::dify_agent::config::{Config, DifyAppType};
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::run::ConnectorRun;
use crate::turn::{ConnectorTurn, TurnFile};
use crate::upstream::failure::Mapped;
use crate::upstream::json::object;

/// `POST /chat-messages`.
pub(super) fn chat(config: &Config, run: &ConnectorRun) -> PlatformRequest {
    let turn = &run.turn;
    let mut body = json!({
        "inputs": inputs(config, turn, JsonObject::new()),
        // Dify refuses an empty query, and a message of files only has no text.
        "query": run.query(turn.text_or(&config.base_prompt)),
        "user": turn.user,
        "response_mode": "streaming",
        "files": run.files,
    });
    // Some versions refuse an empty id.
    if let Some(id) = run.conversation.id() {
        body["conversation_id"] = json!(id);
    }
    post(config, &["chat-messages"], body).framed(ResponseFraming::Sse)
}

/// `POST /workflows/run`. Workflows have no conversation of their own, so they get two stable ids as inputs.
pub(super) fn workflow(config: &Config, run: &mut ConnectorRun) -> PlatformRequest {
    let mut named = JsonObject::new();
    named.insert(config.text_input.clone(), json!(run.turn.text));
    for kind in ["session", "conversation"] {
        let key = format!("external.workflow_{kind}_id");
        let id = run.stable_id(&key, &format!("dify_{kind}"));
        named.insert(format!("langbot_{kind}_id"), json!(id));
    }
    let body = json!({
        "inputs": inputs(config, &run.turn, named),
        "user": run.turn.user,
        "response_mode": "streaming",
        "files": run.files,
    });
    post(config, &["workflows", "run"], body).framed(ResponseFraming::Sse)
}

/// The inputs, later ones taking precedence: named inputs, fixed ones, parameters of the entry, the run token.
fn inputs(config: &Config, turn: &ConnectorTurn, mut inputs: JsonObject) -> JsonObject {
    let further = config.inputs.iter().chain(&turn.params);
    inputs.extend(further.map(|(name, value)| (name.clone(), value.clone())));
    inputs.extend(turn.host_tools(config.host_tools.as_ref()));
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
        .bearer(&config.key)
        .framed(ResponseFraming::Sse)
}

/// `POST /files/upload`.
pub(super) fn upload(config: &Config, user: &str, file: &TurnFile) -> Mapped<PlatformRequest> {
    let url = below(&config.base, &["files", "upload"]);
    let fields = vec![("user", user.to_owned())];
    let request = PlatformRequest::upload(url, fields, file.part()?);
    Ok(request.bearer(&config.key))
}

/// An uploaded file in Dify's form.
pub(super) fn local_file(file: &TurnFile, id: &str) -> Value {
    json!({"type": kind_of(file), "transfer_method": "local_file", "upload_file_id": id})
}

/// A file that Dify fetches itself.
pub(super) fn remote_file(file: &TurnFile, url: &str) -> Value {
    json!({"type": kind_of(file), "transfer_method": "remote_url", "url": url})
}

fn kind_of(file: &TurnFile) -> &'static str {
    file.kind(["image", "audio", "video", "document"])
}

fn post(config: &Config, path: &[&str], body: Value) -> PlatformRequest {
    PlatformRequest::post(below(&config.base, path), object(body)).bearer(&config.key)
}
