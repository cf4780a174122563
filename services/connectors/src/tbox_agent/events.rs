//! Reads the events of Tbox's stream, and emits results. The payload of an event is a text of JSON.

use serde_json::Value;
use url::Url;

use crate::machine::{SavedFile, file_name};
use crate::run::ConnectorRun;
use crate::turn::FileContent;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, Mapped, message_of};
use crate::upstream::json::{self, filled, text_of};
use crate::upstream::usage::usage_in;

/// State of the answer so far.
#[derive(Default)]
pub(super) struct TboxProgress {
    pub(super) is_revoked: bool,
    /// The end mark was received; only further lanes can follow.
    pub(super) has_end: bool,
}

impl TboxProgress {
    pub(super) fn event(&mut self, name: &str, event: &Value, run: &mut ConnectorRun) -> Mapped {
        let payload = payload(&event["payload"]);
        let kind = event["type"].as_str().or_else(|| event["event"].as_str());
        let is_error = name == "error" || kind == Some("error");
        if is_error {
            let source = if payload.is_object() { &payload } else { event };
            return Err(error_of(source));
        }
        let answer = &mut run.answer;
        answer.count([&payload, event].into_iter().find_map(usage_in));
        match kind.unwrap_or(name) {
            "chunk" => chunk(&payload, answer),
            "thinking" => {
                let texts = [&payload["ext_data"]["text"], &payload["text"]];
                let thought = texts.into_iter().find_map(Value::as_str);
                answer.think(thought.unwrap_or_default());
            }
            "revoke" => {
                self.is_revoked = true;
                answer.replace(payload["text"].as_str().unwrap_or_default());
            }
            "end" => self.has_end = true,
            // Gateways in front of Tbox report errors under status 200.
            _ => {
                if let Some(failure) = failure_of(event) {
                    return Err(failure);
                }
            }
        }
        learn([&payload, event], run);
        Ok(())
    }
}

/// Reads the document of an application that does not stream.
pub(super) fn document(document: &Value, run: &mut ConnectorRun) -> Mapped {
    if let Some(failure) = failure_of(document) {
        return Err(failure);
    }
    let data = &document["data"];
    let parts = data["result"].as_array();
    let parts = parts.ok_or_else(|| ConnectorFailure::unreadable(&document.to_string()))?;
    let answer = &mut run.answer;
    answer.count([data, document].into_iter().find_map(usage_in));
    for thought in data["reasoningContent"].as_array().into_iter().flatten() {
        answer.think(thought["text"].as_str().unwrap_or_default());
    }
    for part in parts {
        match &part["chunk"] {
            Value::String(text) if is_text(part) => answer.append(text),
            piece => chunk(&payload(piece), answer),
        }
    }
    learn([data, document], run);
    Ok(())
}

/// Learns the conversation's id after the event was read: a failed chat must not confirm it.
fn learn(sources: [&Value; 2], run: &mut ConnectorRun) {
    let mut sources = sources.into_iter();
    if let Some(id) = sources.find_map(|source| filled(&source["conversationId"])) {
        run.learn(id);
    }
}

fn chunk(payload: &Value, answer: &mut PlatformAnswer) {
    let text = payload["text"].as_str().or_else(|| payload.as_str());
    answer.append(text.unwrap_or_default());
    let urls = match &payload["url"] {
        Value::Array(urls) => urls.as_slice(),
        url => std::slice::from_ref(url),
    };
    for url in urls.iter().filter_map(Value::as_str) {
        let parsed = Url::parse(url).ok();
        if let Some(parsed) = parsed.filter(|url| matches!(url.scheme(), "http" | "https")) {
            // An image of the answer; further ones than the limit are dropped.
            let file = SavedFile {
                name: file_name(&parsed).unwrap_or("image").to_owned(),
                mime_type: None,
                content: FileContent::Url(parsed.into()),
            };
            answer.save(url, file);
        }
    }
}

fn is_text(part: &Value) -> bool {
    part["mediaType"].as_str().is_none_or(|kind| kind == "text")
}

/// A payload: JSON in a text, plain text, or an object.
fn payload(value: &Value) -> Value {
    let parsed = value.as_str().and_then(json::parse);
    let parsed = parsed.filter(|parsed| parsed.is_object() || parsed.is_array());
    parsed.unwrap_or_else(|| value.clone())
}

/// The failure in a document: a code other than 0.
pub(super) fn failure_of(event: &Value) -> Option<ConnectorFailure> {
    let code = text_of(&event["errorCode"])?;
    (code != "0").then(|| error_of(event))
}

fn error_of(error: &Value) -> ConnectorFailure {
    let codes = ["errorCode", "status_code", "code"];
    let code = codes.iter().find_map(|key| text_of(&error[*key]));
    let messages = ["errorMsg", "description"];
    let message = messages.iter().find_map(|key| filled(&error[*key]));
    let message = message
        .or_else(|| message_of(error))
        .or_else(|| error.as_str());
    let status = code.as_deref().and_then(|code| code.parse().ok());
    let status = status.filter(|status| (400..600).contains(status));
    ConnectorFailure::reported(status, code.as_deref(), message.unwrap_or_default())
}
