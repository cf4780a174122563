//! The input of a run.

use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::ag_ui_agent::config::Config;
use crate::machine::HistoryMessage;
use crate::request::{PlatformRequest, ResponseFraming};
use crate::turn::{ConnectorTurn, FileContent, TurnFile};
use crate::upstream::failure::ConnectorFailure;
use crate::upstream::json::object;

/// The parts of an input that change with each run.
pub(super) struct AgUiRun<'a> {
    pub(super) thread: &'a str,
    pub(super) id: String,
    pub(super) state: &'a Value,
    pub(super) history: &'a [HistoryMessage],
    /// The answers to interrupts; absent for a new message.
    pub(super) resume: Option<Value>,
}

/// `RunAgentInput`.
pub(super) fn run(
    config: &Config,
    turn: &ConnectorTurn,
    run: AgUiRun<'_>,
) -> Result<PlatformRequest, ConnectorFailure> {
    let earlier = run.history.iter().enumerate().map(|(at, message)| {
        json!({"id": format!("earlier_{}", at + 1), "role": message.role, "content": message.text})
    });
    let mut messages: Vec<_> = earlier.collect();
    // The answer to an earlier run's question is not a new message.
    if turn.submission.is_none() {
        let id = format!("message_{}", turn.run_id);
        messages.push(json!({"id": id, "role": "user", "content": content(turn)?}));
    }
    let mut forwarded = config.forwarded.clone();
    if let (Some(name), Some(token)) = (&config.host_tools, &turn.run_token) {
        forwarded.insert(name.clone(), json!(token.expose_secret()));
    }
    let mut body = json!({
        "threadId": run.thread,
        "runId": run.id,
        "protocolVersion": "1.0",
        "state": run.state,
        "messages": messages,
        "tools": [],
        "context": [],
        "forwardedProps": forwarded,
    });
    if let Some(resume) = run.resume {
        body["resume"] = resume;
    }
    let request =
        PlatformRequest::post(config.url.clone(), object(body)).framed(ResponseFraming::Sse);
    Ok(match &config.credential {
        Some((name, value)) => request.header(*name, value.expose_secret()),
        None => request,
    })
}

/// The text, or parts if there are files.
fn content(turn: &ConnectorTurn) -> Result<Value, ConnectorFailure> {
    if turn.files.is_empty() {
        return Ok(json!(turn.text));
    }
    let text = (!turn.text.is_empty()).then(|| Ok(json!({"type": "text", "text": turn.text})));
    text.into_iter()
        .chain(turn.files.iter().map(part))
        .collect()
}

fn part(file: &TurnFile) -> Result<Value, ConnectorFailure> {
    let kind = match file.mime_type.split('/').next() {
        Some("image") => "image",
        Some("audio") => "audio",
        Some("video") => "video",
        _ => "document",
    };
    let source = if let FileContent::Url(url) = &file.content {
        json!({"type": "url", "value": url, "mimeType": file.mime_type})
    } else {
        let url = file.url()?;
        let value = url.split_once(',').map_or("", |(_, data)| data);
        json!({"type": "data", "value": value, "mimeType": file.mime_type})
    };
    Ok(json!({"type": kind, "source": source, "metadata": {"filename": file.name}}))
}
