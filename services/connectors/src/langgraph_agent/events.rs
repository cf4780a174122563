//! Reads the events of a run, and emits results.

use std::collections::{BTreeMap, BTreeSet};

use protocol::message::LlmTokenUsage;
use serde_json::Value;

use crate::langgraph_agent::config::LangGraphServer;
use crate::langgraph_agent::interrupts::{self, Interrupt};
use crate::langgraph_agent::messages::{
    Author, author_of, is_chunk, is_hidden, key_of, reasoning_of, text_of,
};
use crate::run::ConnectorRun;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped, message_of};
use crate::upstream::json::filled;
use crate::upstream::results::cut;
use crate::upstream::usage::{self, usage_of};

/// Maximum failed subtasks in a failure.
const MAX_FAILURES: usize = 5;
/// Maximum interrupts of one stop; further ones are ignored.
const MAX_INTERRUPTS: usize = 20;
const CLARIFICATION: &str = "ask_clarification";

/// Status of a run whose stream ended without an end mark.
#[derive(Debug)]
pub(super) enum Settled {
    Over,
    Running,
}

/// State of the answer so far: the last message of the agent.
pub(super) struct LangGraphProgress {
    server: LangGraphServer,
    usage: BTreeMap<String, LlmTokenUsage>,
    /// Keys of messages from before the run. Absent before the first state.
    earlier: Option<BTreeSet<String>>,
    /// The run resumes after a question of an earlier run, so no message of its first state is new.
    goes_on: bool,
    /// Key and text of the current message.
    current: (String, String),
    /// Key and text of the last message in the state.
    last: Option<(String, String)>,
    failures: Vec<String>,
    pub(super) interrupts: Vec<Interrupt>,
}

impl LangGraphProgress {
    pub(super) fn new(server: LangGraphServer, goes_on: bool) -> Self {
        Self {
            server,
            usage: BTreeMap::new(),
            earlier: None,
            goes_on,
            current: Default::default(),
            last: None,
            failures: Vec::new(),
            interrupts: Vec::new(),
        }
    }

    /// Reads one event. True at the end mark.
    pub(super) fn event(
        &mut self,
        name: &str,
        event: &Value,
        run: &mut ConnectorRun,
    ) -> Mapped<bool> {
        let answer = &mut run.answer;
        // Events of subgraphs have their path after a bar.
        match name.split('|').next().unwrap_or_default() {
            "metadata" => {
                let id = filled(&event["run_id"]).map(str::to_owned);
                run.task = id.or(run.task.take());
            }
            "values" => self.values(event, answer),
            "updates" => self.interrupted(&event["__interrupt__"]),
            "messages" | "messages-tuple" | "message" | "messages/partial"
            | "messages/complete" => {
                self.messages(event, answer);
            }
            "custom" => self.custom(event),
            "error" => return Err(error(event)),
            "end" => return Ok(true),
            _ => {}
        }
        Ok(false)
    }

    /// Reads the thread's state after a stream without an end mark.
    pub(super) fn state(&mut self, state: &Value, run: &mut ConnectorRun) -> Mapped<Settled> {
        let id = filled(&state["metadata"]["run_id"]);
        if let (Some(id), Some(own)) = (id, &run.task)
            // The state belongs to another run of the thread, so this one has not written its own yet.
            && id != own
        {
            return Ok(Settled::Running);
        }
        let Some(next) = state["next"].as_array() else {
            return Err(ConnectorFailure::unreadable(&state.to_string()));
        };
        self.values(&state["values"], &mut run.answer);
        let tasks = || state["tasks"].as_array().into_iter().flatten();
        for task in tasks() {
            self.interrupted(&task["interrupts"]);
        }
        if !self.interrupts.is_empty() || next.is_empty() {
            return Ok(Settled::Over);
        }
        match tasks().find_map(|task| filled(&task["error"])) {
            Some(error) => Err(ConnectorFailure::reported(None, None, error)),
            None => Ok(Settled::Running),
        }
    }

    /// Adds the rest of the last message, and the usage of all messages.
    pub(super) fn finish(&mut self, answer: &mut PlatformAnswer) {
        if let Some((key, text)) = self.last.take() {
            self.tell(&key, &text, answer);
        }
        answer.usage = usage::sum(std::mem::take(&mut self.usage).into_values());
    }

    /// The failure of an answer without text.
    pub(super) fn silence(&self) -> ConnectorFailure {
        if self.failures.is_empty() {
            return ConnectorFailure::empty();
        }
        let message = format!(
            "subtasks failed on the server: {}",
            self.failures.join("; ")
        );
        ConnectorFailure::new(FailureKind::ApiError, message)
    }

    /// Reads the new messages of a state.
    fn values(&mut self, state: &Value, answer: &mut PlatformAnswer) {
        self.interrupted(&state["__interrupt__"]);
        let sources = [&state["messages"], &state["values"]["messages"]];
        let Some(messages) = sources.into_iter().find_map(Value::as_array) else {
            return;
        };
        let earlier = self
            .earlier
            .take()
            .unwrap_or_else(|| earlier_of(messages, self.goes_on));
        let new = messages.iter().enumerate();
        let new = new.map(|(index, message)| (key_of(message, index), message));
        for (key, message) in new.filter(|(key, _)| !earlier.contains(key)) {
            match author_of(message) {
                _ if is_hidden(message) => {}
                Author::Agent => {
                    calls(message, answer);
                    if let Some(usage) = usage_of(&message["usage_metadata"]) {
                        self.usage.insert(key.clone(), usage);
                    }
                    let text = text_of(message);
                    if !text.trim().is_empty() {
                        self.last = Some((key, text));
                    }
                }
                Author::Tool => self.tool_ended(&key, message, answer),
                Author::Human | Author::Other => {}
            }
        }
        self.earlier = Some(earlier);
        // Servers without pieces send their messages only here.
        if self.current.0.is_empty()
            && let Some((key, text)) = self.last.clone()
        {
            self.tell(&key, &text, answer);
        }
    }

    /// Reads a message or a piece of one. Metadata may follow it in the list.
    fn messages(&mut self, payload: &Value, answer: &mut PlatformAnswer) {
        let message = match payload {
            Value::Array(pair) => pair.first().unwrap_or(&Value::Null),
            payload if payload["data"].is_object() => &payload["data"],
            payload => payload,
        };
        let key = filled(&message["id"]).unwrap_or(&self.current.0).to_owned();
        match author_of(message) {
            _ if is_hidden(message) => {}
            Author::Agent => {
                answer.think(&reasoning_of(message));
                if let Some(usage) = usage_of(&message["usage_metadata"]) {
                    self.count(&key, usage, is_chunk(message));
                }
                let text = text_of(message);
                if is_chunk(message) {
                    self.append(&key, &text, answer);
                } else {
                    calls(message, answer);
                    self.tell(&key, &text, answer);
                }
            }
            Author::Tool => self.tool_ended(&key, message, answer),
            Author::Human | Author::Other => {}
        }
    }

    /// Adds up the usage of the pieces of one message.
    fn count(&mut self, key: &str, usage: LlmTokenUsage, is_piece: bool) {
        let previous = self.usage.remove(key).filter(|_| is_piece);
        if let Some(usage) = usage::sum(previous.into_iter().chain([usage])) {
            self.usage.insert(key.to_owned(), usage);
        }
    }

    fn append(&mut self, key: &str, piece: &str, answer: &mut PlatformAnswer) {
        if piece.is_empty() {
            return;
        }
        if self.current.0 != key {
            // Only the last message of the agent is the answer, so drop the text before it.
            if answer.has_begun() {
                answer.replace("");
            }
            self.current = (key.to_owned(), String::new());
        }
        self.current.1.push_str(piece);
        answer.append(piece);
    }

    /// Emits a complete message.
    fn tell(&mut self, key: &str, text: &str, answer: &mut PlatformAnswer) {
        if text.is_empty() || (self.current.0 == key && self.current.1 == text) {
            return;
        }
        let is_same = self.current.0 == key;
        let rest = text.strip_prefix(self.current.1.as_str());
        if let Some(rest) = rest.filter(|_| is_same).map(str::to_owned) {
            self.append(key, &rest, answer);
        } else {
            self.current = Default::default();
            self.append(key, text, answer);
        }
    }

    fn tool_ended(&mut self, key: &str, message: &Value, answer: &mut PlatformAnswer) {
        let text = text_of(message);
        // DeerFlow asks its user by the result of this tool, and then ends.
        if self.server == LangGraphServer::DeerFlow && message["name"] == CLARIFICATION {
            self.last = Some((key.to_owned(), text.clone()));
        }
        if let Some(id) = filled(&message["tool_call_id"]) {
            let failed = (message["status"] == "error").then_some(text.as_str());
            answer.tool_completed(id, message["content"].clone(), failed);
        }
    }

    /// Collects failures of DeerFlow's subtasks.
    fn custom(&mut self, event: &Value) {
        let is_failure = matches!(
            event["type"].as_str(),
            Some("task_failed" | "task_timed_out")
        );
        if is_failure && self.failures.len() < MAX_FAILURES {
            let task = filled(&event["task_id"]).unwrap_or("task");
            let error = message_of(event).unwrap_or("no reason was given");
            self.failures.push(cut(&format!("{task}: {error}"), 500));
        }
    }

    fn interrupted(&mut self, list: &Value) {
        for interrupt in interrupts::read(list) {
            let is_present = self
                .interrupts
                .iter()
                .any(|other| other.id.is_some() && other.id == interrupt.id || *other == interrupt);
            if !is_present && self.interrupts.len() < MAX_INTERRUPTS {
                self.interrupts.push(interrupt);
            }
        }
    }
}

fn calls(message: &Value, answer: &mut PlatformAnswer) {
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        if let (Some(id), Some(name)) = (filled(&call["id"]), filled(&call["name"])) {
            answer.tool_started(id, name, call["args"].clone());
        }
    }
}

/// Keys of the messages in the first state that precede this run: all up to the user's last message.
fn earlier_of(messages: &[Value], goes_on: bool) -> BTreeSet<String> {
    let last = messages
        .iter()
        .rposition(|message| author_of(message) == Author::Human);
    let count = match last {
        Some(last) if !goes_on => last + 1,
        _ => messages.len(),
    };
    let keys = messages.iter().enumerate().take(count);
    keys.map(|(index, message)| key_of(message, index))
        .collect()
}

fn error(event: &Value) -> ConnectorFailure {
    let code = filled(&event["error"]).filter(|_| event["message"].is_string());
    let message = message_of(event).or_else(|| event.as_str());
    ConnectorFailure::reported(None, code, message.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn earlier_messages_end_with_the_persons_last_one() {
        let messages = [
            json!({"type": "human", "id": "1"}),
            json!({"type": "ai", "id": "2"}),
            json!({"type": "human"}),
            json!({"type": "ai", "id": "4"}),
        ];
        let keys = |count, goes_on| {
            earlier_of(&messages[..count], goes_on)
                .into_iter()
                .collect::<Vec<_>>()
        };
        assert_eq!(keys(4, false), ["#2", "1", "2"]);
        assert_eq!(keys(4, true), ["#2", "1", "2", "4"]);
        assert_eq!(earlier_of(&messages[3..], false).len(), 1);
    }
}
