//! Requests to a LangGraph server.

use protocol::JsonObject;
use serde_json::{Value, json};

use crate::langgraph_agent::config::{Config, LangGraphServer};
use crate::request::{PlatformRequest, ResponseFraming, below};
use crate::run::ConnectorRun;
use crate::turn::{ConnectorTurn, TurnFile};
use crate::upstream::failure::{ConnectorFailure, Mapped};

/// `POST /threads`.
pub(super) fn thread(config: &Config) -> PlatformRequest {
    let body = JsonObject::from_iter([("metadata".to_owned(), json!({}))]);
    authorized(
        config,
        PlatformRequest::post(below(&config.base, &["threads"]), body),
    )
}

/// The input of a run.
pub(super) enum RunInput {
    Messages(Value),
    /// The value that resumes the graph.
    Resume(Value),
}

/// `POST /threads/{thread}/runs/stream`, with `input` or `command`.
pub(super) fn run(
    config: &Config,
    turn: &ConnectorTurn,
    thread: &str,
    work: RunInput,
) -> PlatformRequest {
    let modes = match config.server {
        LangGraphServer::LangGraph => json!(["values", "messages-tuple", "updates", "custom"]),
        LangGraphServer::DeerFlow => json!(["values", "messages-tuple", "custom"]),
    };
    let (mut context, mut configurable) = (config.context.clone(), config.configurable.clone());
    let target = if configurable.is_empty() {
        &mut context
    } else {
        &mut configurable
    };
    target.extend(turn.host_tools(config.host_tools.as_ref()));
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
    let (kind, value) = match work {
        RunInput::Messages(input) => ("input", input),
        RunInput::Resume(answers) => ("command", json!({"resume": answers})),
    };
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
pub(super) fn input(run: &ConnectorRun) -> Value {
    let mut messages = run.chat_history();
    let is_empty = run.files.is_empty() && run.turn.text.trim().is_empty();
    // Models refuse an empty message.
    let content = if is_empty {
        json!("continue")
    } else {
        run.content("text")
    };
    messages.push(json!({"role": "user", "content": content}));
    json!({"messages": messages})
}

/// A file as a part of a message.
pub(super) fn part(config: &Config, file: &TurnFile) -> Mapped<Value> {
    let kind = file.kind(["image", "audio", "video", "file"]);
    if kind == "image" {
        return Ok(json!({"type": "image_url", "image_url": {"url": file.url()?}}));
    }
    if config.server == LangGraphServer::DeerFlow {
        return Err(ConnectorFailure::upload(
            &file.name,
            "cannot be handed over: DeerFlow accepts images only",
        ));
    }
    let mut part = json!({"type": kind, "mime_type": file.mime_type, "filename": file.name});
    match file.address() {
        Some(url) => part["url"] = json!(url),
        None => part["base64"] = json!(file.base64()?),
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
    request.authorized(config.credential.as_ref())
}
