//! Requests to a LangGraph server.

use protocol::JsonObject;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::langgraph_agent::config::{Config, LangGraphServer};
use crate::machine::HistoryMessage;
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::turn::{ConnectorTurn, FileContent, TurnFile};
use crate::upstream::failure::ConnectorFailure;

/// `POST /threads`.
pub(super) fn thread(config: &Config) -> PlatformRequest {
    let body = JsonObject::from_iter([("metadata".to_owned(), json!({}))]);
    authorized(
        config,
        PlatformRequest::post(below(&config.base, &["threads"]), body),
    )
}

/// `POST /threads/{thread}/runs/stream`, with `input` or `command`.
pub(super) fn run(
    config: &Config,
    turn: &ConnectorTurn,
    thread: &str,
    work: (&str, Value),
) -> PlatformRequest {
    let modes = match config.server {
        LangGraphServer::LangGraph => json!(["values", "messages-tuple", "updates", "custom"]),
        LangGraphServer::DeerFlow => json!(["values", "messages-tuple", "custom"]),
    };
    let (mut context, mut configurable) = (config.context.clone(), config.configurable.clone());
    if let (Some(name), Some(token)) = (&config.host_tools, &turn.run_token) {
        let target = if configurable.is_empty() {
            &mut context
        } else {
            &mut configurable
        };
        target.insert(name.clone(), json!(token.expose_secret()));
    }
    if config.server == LangGraphServer::DeerFlow {
        for target in [&mut context, &mut configurable] {
            target.insert("thread_id".to_owned(), json!(thread));
        }
    }
    let mut settings = JsonObject::new();
    if config.recursion_limit > 0 {
        settings.insert("recursion_limit".to_owned(), json!(config.recursion_limit));
    }
    if !configurable.is_empty() {
        settings.insert("configurable".to_owned(), json!(configurable));
    }
    let (kind, value) = work;
    let mut body = JsonObject::from_iter([
        ("assistant_id".to_owned(), json!(config.assistant)),
        (kind.to_owned(), value),
        ("stream_mode".to_owned(), modes),
    ]);
    // Newer servers refuse a context next to configurable members, so send no empty ones.
    for (name, members) in [("config", settings), ("context", context)] {
        if !members.is_empty() {
            body.insert(name.to_owned(), json!(members));
        }
    }
    let url = below(&config.base, &["threads", thread, "runs", "stream"]);
    authorized(config, PlatformRequest::post(url, body)).framed(ResponseFraming::Sse)
}

/// The input of a run: the messages that the thread does not have.
pub(super) fn input(
    config: &Config,
    turn: &ConnectorTurn,
    history: &[HistoryMessage],
) -> Result<Value, ConnectorFailure> {
    let earlier = history
        .iter()
        .map(|message| json!({"role": message.role, "content": message.text}));
    let mut messages: Vec<_> = earlier.collect();
    messages.push(json!({"role": "user", "content": content(config, turn)?}));
    Ok(json!({"messages": messages}))
}

fn content(config: &Config, turn: &ConnectorTurn) -> Result<Value, ConnectorFailure> {
    if turn.files.is_empty() {
        let is_empty = turn.text.trim().is_empty();
        // Models refuse an empty message.
        return Ok(json!(if is_empty { "continue" } else { &turn.text }));
    }
    let text = (!turn.text.is_empty()).then(|| Ok(json!({"type": "text", "text": turn.text})));
    let files = turn.files.iter().map(|file| part(config, file));
    text.into_iter().chain(files).collect()
}

fn part(config: &Config, file: &TurnFile) -> Result<Value, ConnectorFailure> {
    let kind = match file.mime_type.split('/').next() {
        Some("image") => {
            return Ok(json!({"type": "image_url", "image_url": {"url": file.url()?}}));
        }
        Some("audio") => "audio",
        Some("video") => "video",
        _ => "file",
    };
    if config.server == LangGraphServer::DeerFlow {
        return Err(ConnectorFailure::upload(
            &file.name,
            "cannot be handed over: DeerFlow accepts images only",
        ));
    }
    let mut part = json!({"type": kind, "mime_type": file.mime_type, "filename": file.name});
    if let FileContent::Url(url) = &file.content {
        part["url"] = json!(url);
    } else {
        let url = file.url()?;
        part["base64"] = json!(url.split_once(',').map_or("", |(_, data)| data));
    }
    Ok(part)
}

/// `GET /threads/{thread}/state`.
pub(super) fn state(config: &Config, thread: &str) -> PlatformRequest {
    get(config, &["threads", thread, "state"])
}

/// `GET /threads/{thread}/runs/{run}/join`: responds at the end of the run.
pub(super) fn join(config: &Config, thread: &str, run: &str) -> PlatformRequest {
    get(config, &["threads", thread, "runs", run, "join"]).framed(ResponseFraming::Sse)
}

/// `POST /threads/{thread}/runs/{run}/cancel`.
pub(super) fn cancel(config: &Config, thread: &str, run: &str) -> PlatformRequest {
    let url = below(&config.base, &["threads", thread, "runs", run, "cancel"]);
    authorized(config, PlatformRequest::post(url, JsonObject::new()))
}

fn get(config: &Config, path: &[&str]) -> PlatformRequest {
    authorized(config, PlatformRequest::get(below(&config.base, path)))
}

fn authorized(config: &Config, request: PlatformRequest) -> PlatformRequest {
    match &config.credential {
        Some((name, value)) => request.header(*name, value.expose_secret()),
        None => request,
    }
}
