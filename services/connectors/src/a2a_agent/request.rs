//! Calls of A2A, over JSON-RPC or over HTTP and JSON.

use protocol::JsonObject;
use serde_json::{Value, json};
use url::Url;

use crate::a2a_agent::card::Interface;
use crate::a2a_agent::config::{Binding, Config};
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::Mapped;
use crate::upstream::json::object;
use crate::upstream::question::ANSWER;

/// The parts of a message that change with each call.
pub(super) struct A2aMessage<'a> {
    pub(super) id: String,
    pub(super) text: String,
    pub(super) task: Option<&'a str>,
    pub(super) files: &'a [Value],
}

/// `SendStreamingMessage`, or `SendMessage`.
pub(super) fn send(
    config: &Config,
    to: &Interface,
    run: &ConnectorRun,
    input: &A2aMessage<'_>,
) -> PlatformRequest {
    // An event of files only needs no empty text part.
    let has_text = !input.text.is_empty() || input.files.is_empty();
    let text = has_text.then(|| json!({"text": input.text}));
    let parts: Vec<_> = text.iter().chain(input.files).collect();
    let mut message = json!({"messageId": input.id, "role": "ROLE_USER", "parts": parts});
    for (name, id) in [("contextId", run.conversation.id()), ("taskId", input.task)] {
        if let Some(id) = id {
            message[name] = json!(id);
        }
    }
    let mut params = JsonObject::from_iter([("message".to_owned(), message)]);
    if let Some(token) = run.turn.host_tools(config.host_tools.as_ref()) {
        let metadata = Value::Object([token].into_iter().collect());
        params.insert("metadata".to_owned(), metadata);
    }
    let (method, path) = if to.streams {
        ("SendStreamingMessage", "message:stream")
    } else {
        ("SendMessage", "message:send")
    };
    let request = match to.binding {
        Binding::JsonRpc => rpc(to, method, params),
        Binding::HttpJson => PlatformRequest::post(at(to, &[path]), params),
    };
    let framing = if to.streams {
        ResponseFraming::Sse
    } else {
        ResponseFraming::Document
    };
    authorized(config, request).framed(framing)
}

/// `GetTask`.
pub(super) fn task(config: &Config, to: &Interface, id: &str) -> PlatformRequest {
    let request = match to.binding {
        Binding::JsonRpc => rpc(to, "GetTask", id_of(id)),
        Binding::HttpJson => PlatformRequest::get(at(to, &["tasks", id])),
    };
    authorized(config, request)
}

/// `SubscribeToTask`.
pub(super) fn subscribe(config: &Config, to: &Interface, id: &str) -> PlatformRequest {
    let request = match to.binding {
        Binding::JsonRpc => rpc(to, "SubscribeToTask", id_of(id)),
        // `below` escapes each segment, and a colon stays as it is.
        Binding::HttpJson => PlatformRequest::get(at(to, &["tasks", &format!("{id}:subscribe")])),
    };
    authorized(config, request).framed(ResponseFraming::Sse)
}

/// `CancelTask`.
pub(super) fn cancel(config: &Config, to: &Interface, id: &str) -> PlatformRequest {
    let request = match to.binding {
        Binding::JsonRpc => rpc(to, "CancelTask", id_of(id)),
        Binding::HttpJson => {
            let url = at(to, &["tasks", &format!("{id}:cancel")]);
            PlatformRequest::post(url, JsonObject::new())
        }
    };
    authorized(config, request)
}

/// Adds the credential and the protocol version.
pub(super) fn authorized(config: &Config, request: PlatformRequest) -> PlatformRequest {
    let request = request.header("a2a-version", "1.0");
    request.authorized(config.credential.as_ref())
}

fn id_of(id: &str) -> JsonObject {
    JsonObject::from_iter([("id".to_owned(), json!(id))])
}

fn rpc(to: &Interface, method: &str, mut params: JsonObject) -> PlatformRequest {
    if !to.tenant.is_empty() {
        params.insert("tenant".to_owned(), json!(to.tenant));
    }
    // Each call has a connection of its own, so one constant id is enough.
    let body = json!({"jsonrpc": "2.0", "id": "1", "method": method, "params": params});
    PlatformRequest::post(to.url.clone(), object(body))
}

fn at(to: &Interface, path: &[&str]) -> Url {
    let tenant = (!to.tenant.is_empty()).then_some(to.tenant.as_str());
    let path: Vec<_> = tenant.into_iter().chain(path.iter().copied()).collect();
    below(&to.url, &path)
}

/// A file as a part of a message.
pub(super) fn part(file: &TurnFile) -> Mapped<Value> {
    let mut part = json!({"filename": file.name, "mediaType": file.mime_type});
    match file.address() {
        Some(url) => part["url"] = json!(url),
        None => part["raw"] = json!(file.base64()?),
    }
    Ok(part)
}

/// The text of the answer to a question.
pub(super) fn answer_of(values: &JsonObject) -> String {
    let answer = values.get(ANSWER).and_then(Value::as_str);
    answer.unwrap_or_default().to_owned()
}
