//! Reads the events of Coze's stream, and emits results.

use std::collections::{BTreeSet, VecDeque};

use protocol::message::LlmTokenUsage;
use serde_json::Value;

use crate::machine::OutputQueue;
use crate::turn::ConnectorTurn;
use crate::upstream::answer::AnswerText;
use crate::upstream::failure::{ConnectorFailure, FailureKind, message_of};
use crate::upstream::json::{self, filled, text_of};
use crate::upstream::tools::ToolEvents;
use crate::upstream::usage::usage_in;

/// Maximum names of actions in a failure.
const MAX_NAMES: usize = 5;

/// State of the answer so far.
pub(super) struct CozeProgress {
    answer: AnswerText,
    tools: ToolEvents,
    /// Ids of tool calls without a result, oldest first.
    open_calls: VecDeque<String>,
    usage: Option<LlmTokenUsage>,
    /// The chat's id while the chat can be cancelled.
    pub(super) chat_id: Option<String>,
    /// Ids of messages whose text was streamed.
    streamed: BTreeSet<String>,
    pub(super) is_done: bool,
}

impl CozeProgress {
    pub(super) fn new(turn: &ConnectorTurn) -> Self {
        Self {
            answer: AnswerText::new(turn),
            tools: ToolEvents::default(),
            open_calls: VecDeque::new(),
            usage: None,
            chat_id: None,
            streamed: BTreeSet::new(),
            is_done: false,
        }
    }

    /// True once results of the run exist.
    pub(super) fn has_begun(&self) -> bool {
        self.answer.has_begun() || self.tools.has_reported()
    }

    pub(super) fn event(
        &mut self,
        name: &str,
        event: &Value,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        match name {
            "conversation.chat.created" | "conversation.chat.in_progress" => {
                self.chat_id = filled(&event["id"]).map(str::to_owned);
            }
            "conversation.message.delta" => self.delta(event, out),
            "conversation.message.completed" => self.message(event, out),
            "conversation.chat.completed" => {
                self.usage = usage_in(event).or(self.usage.take());
                self.is_done = true;
            }
            "conversation.chat.failed" => return Err(self.over(error_of(&event["last_error"]))),
            "conversation.chat.requires_action" => return Err(self.over(wanted(event))),
            "conversation.chat.canceled" => {
                let failure =
                    ConnectorFailure::new(FailureKind::ApiError, "the chat was cancelled on Coze");
                return Err(self.over(failure));
            }
            "error" => return Err(self.over(error_of(event))),
            _ => {}
        }
        Ok(())
    }

    /// Marks the chat as ended, so that no stop call is sent.
    fn over(&mut self, failure: ConnectorFailure) -> ConnectorFailure {
        self.chat_id = None;
        failure
    }

    /// Completes the message and the run.
    pub(super) fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        self.chat_id = None;
        if !self.answer.complete(out) {
            return Err(ConnectorFailure::empty());
        }
        out.finish("stop", self.usage.take());
        Ok(())
    }

    fn delta(&mut self, event: &Value, out: &mut OutputQueue) {
        if !is_answer(event) {
            return;
        }
        let thought = event["reasoning_content"].as_str();
        self.answer.think(thought.unwrap_or_default(), out);
        self.say(event, out);
    }

    /// A piece of a message. Agents with workflows send several: each is a paragraph.
    fn say(&mut self, event: &Value, out: &mut OutputQueue) {
        let piece = event["content"].as_str().unwrap_or_default();
        if piece.is_empty() {
            return;
        }
        let is_new = self.streamed.insert(message_id(event).to_owned());
        // Each message is a paragraph of the one answer.
        if is_new && !self.answer.is_empty() {
            self.answer.append("\n\n", out);
        }
        self.answer.append(piece, out);
    }

    fn message(&mut self, event: &Value, out: &mut OutputQueue) {
        match event["type"].as_str().unwrap_or_default() {
            "function_call" => self.call(event, out),
            "tool_output" | "tool_response" => {
                // Tool outputs carry no call id, so match them in the order of the calls.
                if let Some(id) = self.open_calls.pop_front() {
                    let result = result_of(&event["content"]);
                    self.tools.complete(&id, result, None, out);
                }
            }
            // The completed message repeats text that was streamed.
            _ if !is_answer(event) || self.streamed.contains(message_id(event)) => {}
            _ if event["content_type"] == "card" => {
                out.log("warning", "Coze sent a card, which is not shown");
            }
            _ => self.say(event, out),
        }
    }

    /// The call of a plugin or a workflow that runs on Coze.
    fn call(&mut self, event: &Value, out: &mut OutputQueue) {
        let call = result_of(&event["content"]);
        let name = filled(&call["name"]).unwrap_or("tool");
        let parameters = match &call["arguments"] {
            Value::String(text) => json::parse(text).unwrap_or_else(|| text.as_str().into()),
            arguments => arguments.clone(),
        };
        let id = message_id(event);
        self.tools.start(id, name, parameters, out);
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

/// Parses a text of JSON; other values stay.
fn result_of(content: &Value) -> Value {
    let parsed = content.as_str().and_then(json::parse);
    parsed.unwrap_or_else(|| content.clone())
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

/// True for failures about the conversation's id. Code 4000 is used for wrong parameters of any kind.
pub(super) fn is_lost(failure: &ConnectorFailure) -> bool {
    let is = |key: &str, value: &str| {
        let detail = failure.details.get(key).and_then(text_of);
        detail.as_deref() == Some(value)
    };
    let is_named = failure
        .message
        .to_ascii_lowercase()
        .contains("conversation");
    is("code", "4002")
        || is("code", "4200")
        || is("code", "4000") && is_named
        || is("status", "404")
}
