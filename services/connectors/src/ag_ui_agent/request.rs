//! The input of a run.

use serde_json::{Value, json};

use crate::ag_ui_agent::config::Config;
use crate::request::{PlatformRequest, ResponseFraming};
use crate::run::ConnectorRun;
use crate::turn::TurnFile;
use crate::upstream::failure::Mapped;
use crate::upstream::json::object;

/// The parts of an input that change with each run.
pub(super) struct AgUiRun<'a> {
    pub(super) thread: String,
    pub(super) id: String,
    pub(super) state: &'a Value,
    /// The answers to interrupts; absent for a new message.
    pub(super) resume: Option<Value>,
}

/// `RunAgentInput`.
pub(super) fn run(config: &Config, run: &ConnectorRun, input: AgUiRun<'_>) -> PlatformRequest {
    let earlier = run.history.iter().enumerate().map(|(at, message)| {
        json!({"id": format!("earlier_{}", at + 1), "role": message.role, "content": message.text})
    });
    let mut messages: Vec<_> = earlier.collect();
    // The answer to an earlier run's question is not a new message.
    if run.turn.submission.is_none() {
        let id = format!("message_{}", run.turn.run_id);
        messages.push(json!({"id": id, "role": "user", "content": run.content("text")}));
    }
    let mut forwarded = config.forwarded.clone();
    forwarded.extend(run.turn.host_tools(config.host_tools.as_ref()));
    let mut body = json!({
        "threadId": input.thread,
        "runId": input.id,
        "protocolVersion": "1.0",
        "state": input.state,
        "messages": messages,
        "tools": [],
        "context": [],
        "forwardedProps": forwarded,
    });
    if let Some(resume) = input.resume {
        body["resume"] = resume;
    }
    let request = PlatformRequest::post(config.url.clone(), object(body));
    let request = request.authorized(config.credential.as_ref());
    request.framed(ResponseFraming::Sse)
}

/// A file as a part of a message.
pub(super) fn part(file: &TurnFile) -> Mapped<Value> {
    let kind = file.kind(["image", "audio", "video", "document"]);
    let source = match file.address() {
        Some(url) => json!({"type": "url", "value": url, "mimeType": file.mime_type}),
        None => json!({"type": "data", "value": file.base64()?, "mimeType": file.mime_type}),
    };
    Ok(json!({"type": kind, "source": source, "metadata": {"filename": file.name}}))
}
