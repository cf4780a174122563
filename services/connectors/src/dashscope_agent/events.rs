//! Reads the events of Model Studio's stream, and emits results.

use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use crate::dashscope_agent::references::CitationFilter;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, message_of};
use crate::upstream::json::{self, filled, text_of};
use crate::upstream::usage::{usage_in, usage_of};

/// State of the answer so far.
#[derive(Default)]
pub(super) struct DashScopeProgress {
    references: CitationFilter,
    /// A node of a workflow streamed its text; the last event repeats it.
    has_messages: bool,
}

impl DashScopeProgress {
    /// Reads one event. True at the end of the answer.
    pub(super) fn event(&mut self, event: &Value, answer: &mut PlatformAnswer) -> bool {
        let output = &event["output"];
        // Later events repeat the counts, so the last usage wins.
        answer.count(usage(event));
        for (number, entry) in list(&output["thoughts"]).iter().enumerate() {
            thought(number, entry, answer);
        }
        self.references.learn(&output["doc_references"]);
        let message = &output["workflow_message"]["message"]["content"];
        if let Some(piece) = message.as_str().filter(|piece| !piece.is_empty()) {
            self.has_messages = true;
            self.say(piece, answer);
        } else if !self.has_messages {
            self.say(output["text"].as_str().unwrap_or_default(), answer);
        }
        let reason = output["finish_reason"].as_str();
        // Running answers have the text `null` here.
        let reason = reason.filter(|reason| !matches!(*reason, "" | "null"));
        if let Some(reason) = reason {
            answer.finish_reason = Some(reason.to_owned());
        }
        reason.is_some()
    }

    fn say(&mut self, piece: &str, answer: &mut PlatformAnswer) {
        let piece = self.references.push(piece);
        answer.append(&piece);
    }

    /// Adds the rest of the text, and the list of the cited documents below a heading.
    pub(super) fn list_references(&mut self, heading: &str, answer: &mut PlatformAnswer) {
        let has_text = !answer.is_empty();
        let rest = self.references.finish(heading);
        // A list of documents is no answer without text before it.
        if has_text || !rest.starts_with("\n\n") {
            answer.append(&rest);
        }
    }
}

/// A piece of reasoning, or a call that the application runs, such as a search in its knowledge.
fn thought(number: usize, entry: &Value, answer: &mut PlatformAnswer) {
    let thought = entry["thought"].as_str();
    answer.think(thought.unwrap_or_default());
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
    answer.tool_started(&id, name.unwrap_or(kind), parameters);
    let observation = &entry["observation"];
    if filled(observation).is_some() {
        answer.tool_completed(&id, json::parsed(observation), None);
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
