//! Reads the events of Tbox's stream, and emits results. The payload of an event is a text of JSON.

use std::collections::BTreeSet;

use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};
use url::Url;

use crate::machine::{MachineOutput, OutputQueue, SavedFile};
use crate::turn::{ConnectorTurn, FileContent};
use crate::upstream::answer::AnswerText;
use crate::upstream::failure::{ConnectorFailure, FailureKind, message_of};
use crate::upstream::json::{self, filled, text_of};
use crate::upstream::usage::usage_in;

/// Maximum files of one answer; further ones are dropped.
const MAX_FILES: usize = 50;

/// State of the answer so far.
pub(super) struct TboxProgress {
    answer: AnswerText,
    usage: Option<LlmTokenUsage>,
    /// The conversation's id, if the last event had one.
    pub(super) conversation: Option<String>,
    files: BTreeSet<String>,
    is_revoked: bool,
    has_end: bool,
}

impl TboxProgress {
    pub(super) fn new(turn: &ConnectorTurn) -> Self {
        Self {
            answer: AnswerText::new(turn),
            usage: None,
            conversation: None,
            files: BTreeSet::new(),
            is_revoked: false,
            has_end: false,
        }
    }

    /// True once results of the run exist.
    pub(super) fn has_begun(&self) -> bool {
        self.answer.has_begun() || !self.files.is_empty()
    }

    /// True after the end mark; only further lanes can follow.
    pub(super) fn is_done(&self) -> bool {
        self.has_end
    }

    pub(super) fn event(
        &mut self,
        name: &str,
        event: &Value,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let payload = payload(&event["payload"]);
        self.learn([&payload, event]);
        let kind = event["type"].as_str().or_else(|| event["event"].as_str());
        let is_error = name == "error" || kind == Some("error");
        if is_error {
            let source = if payload.is_object() { &payload } else { event };
            return Err(error_of(source));
        }
        match kind.unwrap_or(name) {
            "chunk" => self.chunk(&payload, out),
            "thinking" => {
                let texts = [&payload["ext_data"]["text"], &payload["text"]];
                let thought = texts.into_iter().find_map(Value::as_str);
                self.answer.think(thought.unwrap_or_default(), out);
            }
            "revoke" => {
                self.is_revoked = true;
                let text = payload["text"].as_str().unwrap_or_default();
                self.answer.replace(text, out);
            }
            "end" => self.has_end = true,
            // Gateways in front of Tbox report errors under status 200.
            _ => return failure_of(event).map_or(Ok(()), Err),
        }
        Ok(())
    }

    /// Reads the document of an application that does not stream.
    pub(super) fn document(
        &mut self,
        document: &Value,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        if let Some(failure) = failure_of(document) {
            return Err(failure);
        }
        let data = &document["data"];
        let parts = data["result"].as_array();
        let parts = parts.ok_or_else(|| ConnectorFailure::unreadable(&document.to_string()))?;
        self.learn([data, document]);
        for thought in data["reasoningContent"].as_array().into_iter().flatten() {
            let thought = thought["text"].as_str();
            self.answer.think(thought.unwrap_or_default(), out);
        }
        for part in parts {
            match &part["chunk"] {
                Value::String(text) if is_text(part) => self.answer.append(text, out),
                chunk => self.chunk(&payload(chunk), out),
            }
        }
        Ok(())
    }

    fn learn(&mut self, sources: [&Value; 2]) {
        let id = sources
            .iter()
            .find_map(|source| filled(&source["conversationId"]));
        self.conversation = id.map(str::to_owned);
        let usage = sources.into_iter().find_map(usage_in);
        self.usage = usage.or(self.usage.take());
    }

    fn chunk(&mut self, payload: &Value, out: &mut OutputQueue) {
        let text = payload["text"].as_str().or_else(|| payload.as_str());
        self.answer.append(text.unwrap_or_default(), out);
        let urls = match &payload["url"] {
            Value::Array(urls) => urls.as_slice(),
            url => std::slice::from_ref(url),
        };
        for url in urls.iter().filter_map(Value::as_str) {
            self.file(url, out);
        }
    }

    /// Saves an image of the answer once.
    fn file(&mut self, url: &str, out: &mut OutputQueue) {
        let is_public = |url: &Url| matches!(url.scheme(), "http" | "https");
        let Some(parsed) = Url::parse(url).ok().filter(is_public) else {
            return;
        };
        if self.files.len() >= MAX_FILES || !self.files.insert(url.to_owned()) {
            return;
        }
        let last = parsed
            .path_segments()
            .and_then(|mut segments| segments.next_back());
        let name = last.filter(|name| !name.is_empty()).unwrap_or("image");
        out.push(MachineOutput::Save(SavedFile {
            name: name.to_owned(),
            mime_type: None,
            content: FileContent::Url(parsed.clone().into()),
        }));
    }

    /// Handles the end of the body, which ends an answer even without a mark.
    pub(super) fn ended(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.has_end || self.has_begun() {
            return self.complete(out);
        }
        Err(ConnectorFailure::ended_early())
    }

    /// Completes the message and the run.
    pub(super) fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if !self.answer.complete_with_files(!self.files.is_empty(), out) {
            return Err(if self.is_revoked {
                let message = "Tbox withdrew its answer: ask in other words";
                ConnectorFailure::new(FailureKind::ApiError, message)
            } else {
                ConnectorFailure::empty()
            });
        }
        out.finish("stop", self.usage.take());
        Ok(())
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

/// True for failures about the conversation's id. Tbox documents no code for them.
pub(super) fn is_lost(failure: &ConnectorFailure) -> bool {
    let text = failure.message.to_ascii_lowercase();
    let is_named = text.contains("conversation") || text.contains("会话");
    is_named || failure.details.get("status") == Some(&json!(404))
}
