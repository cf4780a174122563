//! Calls of A2A, over JSON-RPC or over HTTP and JSON.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protocol::JsonObject;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use url::Url;

use crate::a2a_agent::card::Interface;
use crate::a2a_agent::config::{Binding, Config};
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::turn::{ConnectorTurn, FileContent, TurnFile};
use crate::upstream::failure::ConnectorFailure;
use crate::upstream::json::object;
use crate::upstream::question::ANSWER;

/// The parameters of one message.
pub(super) struct A2aMessage<'a> {
    pub(super) id: String,
    pub(super) text: &'a str,
    pub(super) context: Option<&'a str>,
    pub(super) task: Option<&'a str>,
    /// False for the answer of a question: the files belong to the message of the event.
    pub(super) with_files: bool,
}

/// `SendStreamingMessage`, or `SendMessage`.
pub(super) fn send(
    config: &Config,
    to: &Interface,
    turn: &ConnectorTurn,
    input: &A2aMessage<'_>,
) -> Result<PlatformRequest, ConnectorFailure> {
    let has_files = input.with_files && !turn.files.is_empty();
    let text = (!input.text.is_empty() || !has_files).then(|| json!({"text": input.text}));
    // An event of files only needs no empty text part.
    let files = turn.files.iter().filter(|_| input.with_files).map(part);
    let parts: Vec<_> = text
        .into_iter()
        .map(Ok)
        .chain(files)
        .collect::<Result<_, _>>()?;
    let mut message = json!({"messageId": input.id, "role": "ROLE_USER", "parts": parts});
    for (name, id) in [("contextId", input.context), ("taskId", input.task)] {
        if let Some(id) = id {
            message[name] = json!(id);
        }
    }
    let mut params = JsonObject::from_iter([("message".to_owned(), message)]);
    if let (Some(name), Some(token)) = (&config.host_tools, &turn.run_token) {
        let token = JsonObject::from_iter([(name.clone(), json!(token.expose_secret()))]);
        params.insert("metadata".to_owned(), Value::Object(token));
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
    Ok(authorized(config, request).framed(framing))
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
    match &config.credential {
        Some((name, value)) => request.header(*name, value.expose_secret()),
        None => request,
    }
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

fn part(file: &TurnFile) -> Result<Value, ConnectorFailure> {
    let mut part = json!({"filename": file.name, "mediaType": file.mime_type});
    match &file.content {
        FileContent::Url(url) => part["url"] = json!(url),
        _ => part["raw"] = json!(STANDARD.encode(file.bytes()?)),
    }
    Ok(part)
}

/// The text of the answer to a question.
pub(super) fn answer_of(values: &JsonObject) -> String {
    let answer = values.get(ANSWER).and_then(Value::as_str);
    answer.unwrap_or_default().to_owned()
}
