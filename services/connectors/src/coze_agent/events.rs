//! Reads the events of Coze's stream, and emits results.

use std::collections::{BTreeSet, VecDeque};

use serde_json::Value;

use crate::mapping::MappingStep;
use crate::run::ConnectorRun;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped, message_of};
use crate::upstream::json::{self, filled, text_of};
use crate::upstream::usage::usage_in;

/// Maximum names of actions in a failure.
const MAX_NAMES: usize = 5;

/// State of the answer so far.
#[derive(Default)]
pub(super) struct CozeProgress {
    /// Ids of tool calls without a result, oldest first.
    open_calls: VecDeque<String>,
    /// Ids of messages whose text was streamed.
    streamed: BTreeSet<String>,
}

impl CozeProgress {
    pub(super) fn event(
        &mut self,
        name: &str,
        event: &Value,
        run: &mut ConnectorRun,
    ) -> Mapped<MappingStep> {
        let answer = &mut run.answer;
        let failure = match name {
            "conversation.chat.created" | "conversation.chat.in_progress" => {
                run.task = filled(&event["id"]).map(str::to_owned);
                return Ok(MappingStep::Read);
            }
            "conversation.chat.completed" => {
                answer.count(usage_in(event));
                return Ok(MappingStep::Complete);
            }
            "conversation.chat.failed" => error_of(&event["last_error"]),
            "conversation.chat.requires_action" => wanted(event),
            "conversation.chat.canceled" => {
                ConnectorFailure::new(FailureKind::ApiError, "the chat was cancelled on Coze")
            }
            "error" => error_of(event),
            _ => {
                match name {
                    "conversation.message.delta" => self.delta(event, answer),
                    "conversation.message.completed" => self.message(event, answer),
                    _ => {}
                }
                return Ok(MappingStep::Read);
            }
        };
        // The chat ended, so it needs no stop call.
        run.task = None;
        Err(failure)
    }

    fn delta(&mut self, event: &Value, answer: &mut PlatformAnswer) {
        if !is_answer(event) {
            return;
        }
        let thought = event["reasoning_content"].as_str();
        answer.think(thought.unwrap_or_default());
        self.say(event, answer);
    }

    /// A piece of a message. Agents with workflows send several: each is a paragraph.
    fn say(&mut self, event: &Value, answer: &mut PlatformAnswer) {
        let piece = event["content"].as_str().unwrap_or_default();
        if piece.is_empty() {
            return;
        }
        let is_new = self.streamed.insert(message_id(event).to_owned());
        // Each message is a paragraph of the one answer.
        if is_new {
            answer.begin_paragraph();
        }
        answer.append(piece);
    }

    fn message(&mut self, event: &Value, answer: &mut PlatformAnswer) {
        match event["type"].as_str().unwrap_or_default() {
            "function_call" => self.call(event, answer),
            "tool_output" | "tool_response" => {
                // Tool outputs carry no call id, so match them in the order of the calls.
                if let Some(id) = self.open_calls.pop_front() {
                    let result = json::parsed(&event["content"]);
                    answer.tool_completed(&id, result, None);
                }
            }
            // The completed message repeats text that was streamed.
            _ if !is_answer(event) || self.streamed.contains(message_id(event)) => {}
            _ if event["content_type"] == "card" => {
                answer
                    .out
                    .log("warning", "Coze sent a card, which is not shown");
            }
            _ => self.say(event, answer),
        }
    }

    /// The call of a plugin or a workflow that runs on Coze.
    fn call(&mut self, event: &Value, answer: &mut PlatformAnswer) {
        let call = json::parsed(&event["content"]);
        let name = filled(&call["name"]).unwrap_or("tool");
        let parameters = json::parsed(&call["arguments"]);
        let id = message_id(event);
        answer.tool_started(id, name, parameters);
        self.open_calls.push_back(id.to_owned());
    }
}

fn message_id(event: &Value) -> &str {
    event["id"].as_str().unwrap_or_default()
}

/// True for an answer; follow-up questions, knowledge and verbose messages are none.
fn is_answer(event: &Value) -> bool {
    matches!(event["type"].as_str(), None | Some("" | "answer"))
}

/// The failure of a chat that waits for its client, with the names of the requested actions.
fn wanted(event: &Value) -> ConnectorFailure {
    let calls = event["required_action"]["submit_tool_outputs"]["tool_calls"].as_array();
    let names = calls
        .into_iter()
        .flatten()
        .filter_map(|call| filled(&call["function"]["name"]).or_else(|| filled(&call["type"])));
    let names: Vec<_> = names.take(MAX_NAMES).collect();
    let names = match names.as_slice() {
        [] => filled(&event["required_action"]["type"])
            .unwrap_or("an action")
            .to_owned(),
        names => names.join(", "),
    };
    let message = format!(
        "the agent wants its client to run {names}, which connectors do not do: use plugins that Coze runs"
    );
    ConnectorFailure::new(FailureKind::ApiError, message)
}

/// The failure in a document or an event: a code other than 0.
pub(super) fn failure_of(event: &Value) -> Option<ConnectorFailure> {
    let code = event["code"].as_i64()?;
    (code != 0).then(|| error_of(event))
}

fn error_of(error: &Value) -> ConnectorFailure {
    let code = text_of(&error["code"]);
    let message = message_of(error).unwrap_or_default();
    let status = code.as_deref().and_then(|code| code.parse().ok());
    ConnectorFailure::reported(status.and_then(status_of), code.as_deref(), message)
}

/// The HTTP status with the meaning of a code.
fn status_of(code: i64) -> Option<u16> {
    match code {
        // The token is wrong, expired, or lacks a permission.
        4100 | 4101 | 700_012_006 => Some(401),
        // A rate limit, or a chat of the conversation is still running.
        4008 | 4009 | 4016 | 4020 => Some(429),
        4013 | 5000 => Some(503),
        _ => None,
    }
}
