//! Reads the events of a run, and emits results.

use std::collections::BTreeSet;

use protocol::message::LlmTokenUsage;
use serde_json::Value;

use crate::ag_ui_agent::patch;
use crate::turn::ConnectorTurn;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
use crate::upstream::json::{self, filled};
use crate::upstream::usage::{self, usage_of};

/// Maximum messages of one run whose ids are tracked.
const MAX_MESSAGES: usize = 256;
/// Maximum open tool calls of one run.
const MAX_CALLS: usize = 128;
/// Maximum bytes of the arguments of one call.
const MAX_ARGUMENTS: usize = 64 * 1024;
/// Maximum bytes of the agent's state.
const STATE_BYTES: usize = 64 * 1024;
/// State key of the agent's state, from which the next run starts.
pub(super) const STATE: &str = "x.ag_ui.state";

/// The next step of the machine.
#[derive(Debug, PartialEq)]
pub(super) enum AgUiStep {
    Next,
    /// The run is over.
    Over,
    /// The run is paused by these interrupts.
    Paused(Value),
}

/// State of the answer so far.
pub(super) struct AgUiProgress {
    calls: Vec<AgUiCall>,
    usage: Vec<LlmTokenUsage>,
    /// Id of the last message with text.
    message: String,
    /// Ids of messages that are no answer: of other roles, or of subagents.
    others: BTreeSet<String>,
    pub(super) state: Value,
    has_new_state: bool,
    /// The answer if no text was streamed.
    fallback: Option<String>,
}

/// A tool call without a result so far.
struct AgUiCall {
    id: String,
    name: String,
    arguments: String,
}

impl AgUiCall {
    fn tell(&self, answer: &mut PlatformAnswer) {
        let parameters = json::parse(&self.arguments).unwrap_or_default();
        answer.tool_started(&self.id, &self.name, parameters);
    }
}

impl AgUiProgress {
    pub(super) fn new(turn: &ConnectorTurn) -> Self {
        let state = turn.state.get(STATE).cloned();
        Self {
            calls: Vec::new(),
            usage: Vec::new(),
            message: String::new(),
            others: BTreeSet::new(),
            state: state.unwrap_or_else(|| Value::Object(protocol::JsonObject::new())),
            has_new_state: false,
            fallback: None,
        }
    }

    pub(super) fn event(&mut self, event: &Value, answer: &mut PlatformAnswer) -> Mapped<AgUiStep> {
        let delta = event["delta"].as_str().unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "TEXT_MESSAGE_START" => self.message_began(event),
            "TEXT_MESSAGE_CONTENT" => self.text(event, delta, answer),
            "TEXT_MESSAGE_CHUNK" => {
                self.message_began(event);
                self.text(event, delta, answer);
            }
            // The last one is the name before version 1.0.
            "REASONING_MESSAGE_CONTENT"
            | "REASONING_MESSAGE_CHUNK"
            | "THINKING_TEXT_MESSAGE_CONTENT" => {
                answer.think(delta);
            }
            "TOOL_CALL_START" => self.call_began(event),
            "TOOL_CALL_ARGS" => self.arguments(event, delta),
            "TOOL_CALL_CHUNK" => {
                self.call_began(event);
                self.arguments(event, delta);
            }
            "TOOL_CALL_END" => self.call_is_stated(&event["toolCallId"], answer),
            "TOOL_CALL_RESULT" => self.call_ended(event, answer),
            "STATE_SNAPSHOT" => {
                self.state = event["snapshot"].clone();
                self.has_new_state = true;
            }
            "STATE_DELTA" => self.patch(&event["delta"], answer),
            "MESSAGES_SNAPSHOT" => {
                self.fallback = last_answer(&event["messages"]).or(self.fallback.take());
            }
            "RUN_FINISHED" => return self.finished(event),
            "RUN_ERROR" => {
                let message = event["message"].as_str().unwrap_or_default();
                return Err(ConnectorFailure::reported(
                    None,
                    filled(&event["code"]),
                    message,
                ));
            }
            _ => {}
        }
        Ok(AgUiStep::Next)
    }

    /// Stores the state for the next run.
    pub(super) fn store_state(&mut self, answer: &mut PlatformAnswer) {
        if !std::mem::take(&mut self.has_new_state) {
            return;
        }
        let bytes = self.state.to_string().len();
        if bytes > STATE_BYTES {
            let text = format!(
                "the agent's state has {bytes} bytes, and {STATE_BYTES} at most are kept: the next run starts from the state before"
            );
            answer.out.log("warning", &text);
            return;
        }
        answer.out.remember(STATE, self.state.clone());
    }

    /// Adds the calls without an end, the text that was not streamed, and the usage.
    pub(super) fn finish(&mut self, answer: &mut PlatformAnswer) {
        // Calls without an end event start here, so that clients see what the agent requested.
        for call in &self.calls {
            call.tell(answer);
        }
        // Agents without streaming send their text in the last snapshot or result only.
        if answer.is_empty()
            && let Some(text) = self.fallback.take()
        {
            answer.append(&text);
        }
        answer.usage = usage::sum(std::mem::take(&mut self.usage));
    }

    /// The failure of an answer without text.
    pub(super) fn silence(&self) -> ConnectorFailure {
        let Some(call) = self.calls.first() else {
            return ConnectorFailure::empty();
        };
        let message = format!(
            "the agent wants {} called by its client, which connectors do not do: let the agent run its tools",
            call.name
        );
        ConnectorFailure::new(FailureKind::ApiError, message)
    }

    fn finished(&mut self, event: &Value) -> Mapped<AgUiStep> {
        let usage = event["usage"].as_array().into_iter().flatten();
        self.usage.extend(usage.filter_map(usage_of));
        if let Some(result) = json::text_of(&event["result"]) {
            // A snapshot is the conversation itself, so it has priority over the result.
            self.fallback.get_or_insert(result);
        }
        let outcome = &event["outcome"];
        match outcome["type"].as_str() {
            Some("interrupt") => Ok(AgUiStep::Paused(outcome["interrupts"].clone())),
            Some("cancelled") => Err(ConnectorFailure::new(
                FailureKind::ApiError,
                "the run was cancelled on the agent's side",
            )),
            _ => Ok(AgUiStep::Over),
        }
    }

    fn message_began(&mut self, event: &Value) {
        let is_answer = matches!(event["role"].as_str(), None | Some("assistant"));
        let is_of_subagent = filled(&event["subagentRunId"]).is_some();
        let id = event["messageId"].as_str().unwrap_or_default();
        if (!is_answer || is_of_subagent) && self.others.len() < MAX_MESSAGES {
            self.others.insert(id.to_owned());
        }
    }

    fn text(&mut self, event: &Value, piece: &str, answer: &mut PlatformAnswer) {
        // Chunks without an id continue the last message.
        let id = filled(&event["messageId"])
            .unwrap_or(&self.message)
            .to_owned();
        if piece.is_empty() {
            return;
        }
        // Text of a subagent is work for the agent, so report it as reasoning.
        if filled(&event["subagentRunId"]).is_some() {
            answer.think(piece);
            return;
        }
        if self.others.contains(&id) {
            self.message = id;
            return;
        }
        // Each message of a run is a paragraph of the one answer.
        if id != self.message {
            answer.begin_paragraph();
        }
        self.message = id;
        answer.append(piece);
    }

    fn call_began(&mut self, event: &Value) {
        let (Some(id), Some(name)) = (filled(&event["toolCallId"]), filled(&event["toolCallName"]))
        else {
            return;
        };
        if self.calls.len() < MAX_CALLS && self.calls.iter().all(|call| call.id != id) {
            self.calls.push(AgUiCall {
                id: id.to_owned(),
                name: name.to_owned(),
                arguments: String::new(),
            });
        }
    }

    fn arguments(&mut self, event: &Value, piece: &str) {
        // Chunks without an id continue the last call.
        let at = match filled(&event["toolCallId"]) {
            Some(id) => self.calls.iter().position(|call| call.id == id),
            None => self.calls.len().checked_sub(1),
        };
        let call = at.and_then(|at| self.calls.get_mut(at));
        if let Some(call) = call
            // Oversized arguments stay cut and fail to parse, so the call has no parameters.
            && call.arguments.len() + piece.len() <= MAX_ARGUMENTS
        {
            call.arguments.push_str(piece);
        }
    }

    fn call_is_stated(&self, id: &Value, answer: &mut PlatformAnswer) {
        if let Some(call) = self.calls.iter().find(|call| *id == call.id.as_str()) {
            call.tell(answer);
        }
    }

    fn call_ended(&mut self, event: &Value, answer: &mut PlatformAnswer) {
        self.call_is_stated(&event["toolCallId"], answer);
        let id = event["toolCallId"].as_str().unwrap_or_default();
        self.calls.retain(|call| call.id != id);
        // Tool results are texts in the protocol, mostly of JSON.
        let result = json::parsed(&event["content"]);
        answer.tool_completed(id, result, filled(&event["error"]));
    }

    fn patch(&mut self, delta: &Value, answer: &mut PlatformAnswer) {
        match patch::apply(&mut self.state, delta) {
            Some(()) => self.has_new_state = true,
            None => answer.out.log(
                "warning",
                "a change of the agent's state does not fit it, and is left out",
            ),
        }
    }
}

/// The text of the last answer after the user's last message.
fn last_answer(messages: &Value) -> Option<String> {
    let messages = messages.as_array()?.iter().rev();
    let mut new = messages.take_while(|message| message["role"] != "user");
    new.find_map(|message| {
        let is_answer = message["role"] == "assistant" && message["subagentRunId"].is_null();
        text_of(&message["content"]).filter(|_| is_answer)
    })
}

/// The text of a content: a text, or the text parts of a list.
fn text_of(content: &Value) -> Option<String> {
    let parts = content.as_array().into_iter().flatten();
    let parts = parts.filter_map(|part| part["text"].as_str().or_else(|| part.as_str()));
    let text = content
        .as_str()
        .map_or_else(|| parts.collect(), str::to_owned);
    Some(text).filter(|text| !text.trim().is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn snapshots_hold_the_last_answer() {
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let parts = |parts: Value| json!([{"role": "assistant", "content": parts}]);
        let image =
            json!({"type": "image", "source": {"type": "url", "value": "https://a.example"}});
        for (content, text) in [
            (
                json!([{"type": "text", "text": "All of it."}]),
                Some("All of it."),
            ),
            (
                json!([{"type": "text", "text": "All "}, image, {"type": "text", "text": "of it."}]),
                Some("All of it."),
            ),
            (json!([image]), None),
            (json!([]), None),
        ] {
            assert_eq!(last_answer(&parts(content)).as_deref(), text);
        }
        let old = [message("assistant", "Old"), message("user", "Hi")];
        assert_eq!(last_answer(&json!(old)), None);
        let new = [
            message("user", "Hi"),
            message("assistant", "New"),
            message("tool", "x"),
        ];
        assert_eq!(last_answer(&json!(new)).as_deref(), Some("New"));
    }
}
