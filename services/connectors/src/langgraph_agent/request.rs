//! Requests to a LangGraph server.

use protocol::JsonObject;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::langgraph_agent::config::{Config, Server};
use crate::machine::HistoryMessage;
use crate::request::{Framing, Request, below};
use crate::turn::{FileContent, Turn, TurnFile};
use crate::upstream::failure::Failure;

/// `POST /threads`.
pub(super) fn thread(config: &Config) -> Request {
    let body = JsonObject::from_iter([("metadata".to_owned(), json!({}))]);
    authorized(
        config,
        Request::post(below(&config.base, &["threads"]), body),
    )
}

/// `POST /threads/{thread}/runs/stream`, with `input` or `command`.
pub(super) fn run(config: &Config, turn: &Turn, thread: &str, work: (&str, Value)) -> Request {
    let modes = match config.server {
        Server::LangGraph => json!(["values", "messages-tuple", "updates", "custom"]),
        Server::DeerFlow => json!(["values", "messages-tuple", "custom"]),
    };
    let (mut context, mut configurable) = (config.context.clone(), config.configurable.clone());
    if let (Some(name), Some(token)) = (&config.host_tools, &turn.run_token) {
        let place = if configurable.is_empty() {
            &mut context
        } else {
            &mut configurable
        };
        place.insert(name.clone(), json!(token.expose_secret()));
    }
    if config.server == Server::DeerFlow {
        for place in [&mut context, &mut configurable] {
            place.insert("thread_id".to_owned(), json!(thread));
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
    // Newer servers refuse a context beside a configurable: members that are empty are not sent.
    for (name, members) in [("config", settings), ("context", context)] {
        if !members.is_empty() {
            body.insert(name.to_owned(), json!(members));
        }
    }
    let url = below(&config.base, &["threads", thread, "runs", "stream"]);
    authorized(config, Request::post(url, body)).framed(Framing::Sse)
}

/// The input of a run: the messages that the thread has not.
pub(super) fn input(
    config: &Config,
    turn: &Turn,
    history: &[HistoryMessage],
) -> Result<Value, Failure> {
    let earlier = history
        .iter()
        .map(|message| json!({"role": message.role, "content": message.text}));
    let mut messages: Vec<_> = earlier.collect();
    messages.push(json!({"role": "user", "content": content(config, turn)?}));
    Ok(json!({"messages": messages}))
}

fn content(config: &Config, turn: &Turn) -> Result<Value, Failure> {
    if turn.files.is_empty() {
        let is_empty = turn.text.trim().is_empty();
        return Ok(json!(if is_empty { "continue" } else { &turn.text }));
    }
    let text = (!turn.text.is_empty()).then(|| Ok(json!({"type": "text", "text": turn.text})));
    let files = turn.files.iter().map(|file| part(config, file));
    text.into_iter().chain(files).collect()
}

fn part(config: &Config, file: &TurnFile) -> Result<Value, Failure> {
    let kind = match file.mime_type.split('/').next() {
        Some("image") => {
            return Ok(json!({"type": "image_url", "image_url": {"url": file.url()?}}));
        }
        Some("audio") => "audio",
        Some("video") => "video",
        _ => "file",
    };
    if config.server == Server::DeerFlow {
        return Err(Failure::upload(
            &file.name,
            "cannot be handed over: DeerFlow takes images alone",
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
pub(super) fn state(config: &Config, thread: &str) -> Request {
    get(config, &["threads", thread, "state"])
}

/// `GET /threads/{thread}/runs/{run}/join`: answers at the end of the run.
pub(super) fn join(config: &Config, thread: &str, run: &str) -> Request {
    get(config, &["threads", thread, "runs", run, "join"]).framed(Framing::Sse)
}

/// `POST /threads/{thread}/runs/{run}/cancel`.
pub(super) fn cancel(config: &Config, thread: &str, run: &str) -> Request {
    let url = below(&config.base, &["threads", thread, "runs", run, "cancel"]);
    authorized(config, Request::post(url, JsonObject::new()))
}

fn get(config: &Config, path: &[&str]) -> Request {
    authorized(config, Request::get(below(&config.base, path)))
}

fn authorized(config: &Config, request: Request) -> Request {
    match &config.credential {
        Some((name, value)) => request.header(*name, value.expose_secret()),
        None => request,
    }
}
