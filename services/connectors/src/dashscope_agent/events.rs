//! Reads the events of Model Studio's stream, and emits results.

use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use crate::dashscope_agent::config::Config;
use crate::dashscope_agent::references::CitationFilter;
use crate::machine::OutputQueue;
use crate::turn::ConnectorTurn;
use crate::upstream::answer::AnswerText;
use crate::upstream::failure::{ConnectorFailure, message_of};
use crate::upstream::json::{self, filled, text_of};
use crate::upstream::tools::ToolEvents;
use crate::upstream::usage::{usage_in, usage_of};

/// State of the answer so far.
pub(super) struct DashScopeProgress {
    answer: AnswerText,
    tools: ToolEvents,
    references: CitationFilter,
    /// The heading of the citations.
    line: String,
    usage: Option<LlmTokenUsage>,
    /// A node of a workflow streamed its text; the last event repeats it.
    has_messages: bool,
    reason: Option<String>,
}

impl DashScopeProgress {
    pub(super) fn new(turn: &ConnectorTurn, config: &Config) -> Self {
        Self {
            answer: AnswerText::new(turn),
            tools: ToolEvents::default(),
            references: CitationFilter::default(),
            line: config.references.clone(),
            usage: None,
            has_messages: false,
            reason: None,
        }
    }

    /// True once results of the run exist.
    pub(super) fn has_begun(&self) -> bool {
        self.answer.has_begun() || self.tools.has_reported()
    }

    pub(super) fn is_done(&self) -> bool {
        self.reason.is_some()
    }

    pub(super) fn event(&mut self, event: &Value, out: &mut OutputQueue) {
        let output = &event["output"];
        // Later events repeat the counts, so the last usage wins.
        self.usage = usage(event).or(self.usage.take());
        for (number, thought) in list(&output["thoughts"]).iter().enumerate() {
            self.thought(number, thought, out);
        }
        self.references.learn(&output["doc_references"]);
        let message = &output["workflow_message"]["message"]["content"];
        if let Some(piece) = message.as_str().filter(|piece| !piece.is_empty()) {
            self.has_messages = true;
            self.say(piece, out);
        } else if !self.has_messages {
            self.say(output["text"].as_str().unwrap_or_default(), out);
        }
        let reason = output["finish_reason"].as_str();
        // Running answers have the text `null` here.
        let reason = reason.filter(|reason| !matches!(*reason, "" | "null"));
        self.reason = reason.map(str::to_owned).or(self.reason.take());
    }

    fn say(&mut self, piece: &str, out: &mut OutputQueue) {
        let piece = self.references.push(piece);
        self.answer.append(&piece, out);
    }

    /// A piece of reasoning, or a call that the application runs, such as a search in its knowledge.
    fn thought(&mut self, number: usize, entry: &Value, out: &mut OutputQueue) {
        let thought = entry["thought"].as_str();
        self.answer.think(thought.unwrap_or_default(), out);
        let kind = entry["action_type"].as_str().unwrap_or_default();
        // These entries are reasoning without a call.
        if matches!(kind, "" | "reasoning" | "response") {
            return;
        }
        let id = format!("action_{number}");
        let name = ["action_name", "action"]
            .iter()
            .find_map(|key| filled(&entry[*key]));
        let parameters = entry["action_input"].clone();
        self.tools.start(&id, name.unwrap_or(kind), parameters, out);
        if let Some(observation) = filled(&entry["observation"]) {
            let result = json::parse(observation).unwrap_or_else(|| observation.into());
            self.tools.complete(&id, result, None, out);
        }
    }

    /// Completes the message and the run.
    pub(super) fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        let has_text = !self.answer.is_empty();
        let rest = self.references.finish(&self.line);
        // A list of documents is no answer without text before it.
        if has_text || !rest.starts_with("\n\n") {
            self.answer.append(&rest, out);
        }
        if !self.answer.complete(out) {
            return Err(ConnectorFailure::empty());
        }
        out.finish(self.reason.as_deref().unwrap_or("stop"), self.usage.take());
        Ok(())
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The usage, summed over the models that the application used.
fn usage(event: &Value) -> Option<LlmTokenUsage> {
    let models = list(&event["usage"]["models"]);
    if models.is_empty() {
        return usage_in(event);
    }
    let sum = |key: &str| {
        let counts = models.iter().filter_map(|model| model[key].as_i64());
        counts.fold(0, i64::saturating_add)
    };
    usage_of(&json!({"input_tokens": sum("input_tokens"), "output_tokens": sum("output_tokens")}))
}

/// The failure in an event or a document.
pub(super) fn failure_of(name: Option<&str>, event: &Value) -> Option<ConnectorFailure> {
    let code = text_of(&event["code"]).filter(|code| !code.is_empty());
    let status = event["status_code"].as_u64();
    let status = status.and_then(|status| u16::try_from(status).ok());
    let is_failed = status.is_some_and(|status| status != 200);
    // Successful events may have a code as well; their output decides.
    if name != Some("error") && !is_failed && (code.is_none() || event["output"].is_object()) {
        return None;
    }
    let status = status.or_else(|| status_of(code.as_deref()?));
    let message = message_of(event).unwrap_or_default();
    Some(ConnectorFailure::reported(status, code.as_deref(), message))
}

/// The HTTP status with the meaning of a code.
fn status_of(code: &str) -> Option<u16> {
    match code {
        "InvalidApiKey" => Some(401),
        code if code.starts_with("AccessDenied") => Some(403),
        code if code.starts_with("Throttling") => Some(429),
        "RequestTimeOut" => Some(504),
        "ServiceUnavailable" | "ModelServingError" | "ModelUnavailable" => Some(503),
        _ => None,
    }
}

/// True for failures about the session's id.
pub(super) fn is_lost(failure: &ConnectorFailure) -> bool {
    let details = &failure.details;
    let code = details.get("code").and_then(Value::as_str);
    let texts = [code.unwrap_or_default(), failure.message.as_str()];
    let is_named = |text: &&str| text.to_ascii_lowercase().contains("session");
    texts.iter().any(is_named) || details.get("status") == Some(&json!(404))
}
