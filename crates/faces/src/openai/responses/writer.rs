//! Writes responses from the events of a run: a state machine without I/O. The same events give the same numbers,
//! so a client resumes a stream after any event.

use std::collections::HashMap;

use domain::usage::TokenParts;
use llm_formats::chat::responses::{ResponseHead, echo};
use protocol::JsonObject;
use protocol::result::{ArtifactCreatedPayload, ResultType, RunCompletedPayload, RunFailedPayload};
use protocol::run::{AgentRunEvent, RunStatus};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::id::ResponseId;
use super::items::{MessageItem, ToolItem, question_item};
use crate::follow::{ANSWER_BYTES, FaceWriter, reported_tokens};
use crate::message_text::{OpenMessage, TextChange};
use crate::questions::OpenQuestion;

/// Bytes charged for an item in addition to its texts.
const ITEM_BYTES: usize = 512;

/// Members of a response that its events do not have.
pub(super) struct ResponseFacts {
    pub(super) id: ResponseId,
    /// Epoch seconds.
    pub(super) created_at: i64,
    /// Name of the agent.
    pub(super) model: String,
    pub(super) conversation: Option<String>,
    /// Members of the request.
    pub(super) request: JsonObject,
}

/// Events that a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventsShown {
    All,
    /// Those after this number.
    After(u64),
    /// None, for an answer in one piece.
    Nothing,
}

/// End of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ResponseEnd {
    Completed,
    Incomplete(&'static str),
    Failed { code: String, message: String },
}

/// Writer of one response.
pub(super) struct ResponseWriter {
    head: ResponseHead,
    echo: JsonObject,
    background: bool,
    conversation: Option<String>,
    shown: EventsShown,
    sequence: u64,
    frames: String,
    open: OpenMessage,
    message: Option<MessageItem>,
    items: Vec<Value>,
    /// Open tool calls by their id at the runner.
    calls: HashMap<String, ToolItem>,
    bytes: usize,
    reported: Option<TokenParts>,
    end: Option<ResponseEnd>,
    /// Epoch seconds of the event that ended it.
    ended_at: i64,
}

impl ResponseWriter {
    pub(super) fn new(facts: ResponseFacts, shown: EventsShown) -> Self {
        let request = facts.request;
        let previous = request.get("previous_response_id").and_then(Value::as_str);
        Self {
            head: ResponseHead {
                key: facts.id.key(),
                created_at: facts.created_at,
                model: facts.model,
                previous: previous.map(str::to_owned),
            },
            echo: echo(&request),
            background: request.get("background") == Some(&json!(true)),
            conversation: facts.conversation,
            shown,
            sequence: 0,
            frames: String::new(),
            open: OpenMessage::default(),
            message: None,
            items: Vec::new(),
            calls: HashMap::new(),
            bytes: 0,
            reported: None,
            end: None,
            ended_at: 0,
        }
    }

    /// The response so far. `run`: status of a run whose end the writer has not seen.
    pub(super) fn response(&self, run: RunStatus, tokens: Option<TokenParts>) -> Value {
        let (mut error, mut incomplete) = (Value::Null, Value::Null);
        let status = match &self.end {
            None if matches!(run, RunStatus::Created | RunStatus::Queued) => "queued",
            None => "in_progress",
            Some(ResponseEnd::Completed) => "completed",
            Some(ResponseEnd::Incomplete(reason)) => {
                incomplete = json!({"reason": reason});
                "incomplete"
            }
            Some(ResponseEnd::Failed { code, .. }) if code == "cancelled" => "cancelled",
            Some(ResponseEnd::Failed { code, message }) => {
                error = json!({"code": code, "message": message});
                "failed"
            }
        };
        let is_completed = self.end == Some(ResponseEnd::Completed);
        let completed_at = is_completed.then_some(self.ended_at);
        let usage = self.reported.or(tokens).map_or(Value::Null, usage_of);
        let mut output = self.items.clone();
        if let Some(message) = &self.message {
            // The list has the item as it was at its begin.
            output[message.index] = message.value("in_progress");
        }
        let mut response = self.head.response(&self.echo, status, output, &usage);
        let conversation = self.conversation.as_ref().map(|id| json!({"id": id}));
        for (name, value) in [
            ("background", json!(self.background)),
            ("completed_at", json!(completed_at)),
            ("conversation", json!(conversation)),
            ("error", error),
            ("incomplete_details", incomplete),
            // The ledger has it.
            ("store", json!(true)),
        ] {
            response[name] = value;
        }
        response
    }

    /// Numbers an event, and writes it if the client has not seen it.
    fn emit(&mut self, kind: &str, mut event: Value) {
        let is_shown = match self.shown {
            EventsShown::All => true,
            EventsShown::After(seen) => self.sequence > seen,
            EventsShown::Nothing => false,
        };
        if is_shown {
            // Only for shown events: a silent writer costs no JSON.
            event["type"] = json!(kind);
            event["sequence_number"] = json!(self.sequence);
            for line in ["event: ", kind, "\ndata: ", &event.to_string(), "\n\n"] {
                self.frames.push_str(line);
            }
        }
        // Hidden events count, too, so that a resumed stream has the same numbers.
        self.sequence += 1;
    }

    fn emit_all(&mut self, events: impl IntoIterator<Item = (&'static str, Value)>) {
        for (kind, event) in events {
            self.emit(kind, event);
        }
    }

    fn emit_response(&mut self, kind: &str, tokens: Option<TokenParts>) {
        let response = match self.shown {
            EventsShown::Nothing => Value::Null,
            _ => self.response(RunStatus::Running, tokens),
        };
        self.emit(kind, json!({"response": response}));
    }

    fn add_item(&mut self, item: Value) {
        self.bytes += ITEM_BYTES;
        self.items.push(item);
    }

    /// The open message; without one, a new one begins.
    fn open_message(&mut self) -> &mut MessageItem {
        let message = match self.message.take() {
            Some(message) => message,
            None => self.begin_message(),
        };
        self.message.insert(message)
    }

    fn begin_message(&mut self) -> MessageItem {
        let index = self.items.len();
        let message = MessageItem::new(&self.head.key, index);
        self.add_item(message.value("in_progress"));
        self.emit_all(message.begin());
        message
    }

    fn close_message(&mut self, status: &'static str) {
        if let Some(message) = self.message.take() {
            self.items[message.index] = message.value(status);
            self.emit_all(message.end(status));
        }
    }

    fn apply(&mut self, change: TextChange) {
        match change {
            TextChange::Append(text) => {
                self.bytes += text.len();
                let event = self.open_message().append(&text);
                self.emit("response.output_text.delta", event);
            }
            TextChange::Close => self.close_message("completed"),
            TextChange::Withdraw => self.close_message("incomplete"),
        }
    }

    fn add_artifact(&mut self, artifact: &str) {
        self.bytes += ITEM_BYTES;
        let event = self.open_message().annotate(artifact);
        self.emit("response.output_text.annotation.added", event);
    }

    fn begin_call(&mut self, data: &JsonObject) {
        let index = self.items.len();
        let Some((id, item)) = ToolItem::begin(&self.head.key, index, data) else {
            return;
        };
        // A repeated id would leave the first call open.
        if self.calls.contains_key(&id) {
            return;
        }
        self.bytes += item.bytes();
        self.add_item(item.value("in_progress"));
        self.emit_all(item.begin_events());
        self.calls.insert(id, item);
    }

    fn end_call(&mut self, data: &JsonObject) {
        let id = data.get("tool_call_id").and_then(Value::as_str);
        let Some(mut item) = id.and_then(|id| self.calls.remove(id)) else {
            return;
        };
        let before = item.bytes();
        item.complete(data);
        self.bytes += item.bytes() - before;
        let status = item.end_status();
        self.items[item.index] = item.value(status);
        self.emit_all(item.end_events(status));
    }

    fn ask(&mut self, question: &OpenQuestion) {
        self.bytes += 2 * question.arguments.len();
        let index = self.items.len();
        let (item, events) = question_item(&self.head.key, index, question);
        self.add_item(item);
        self.emit_all(events);
        // The client must answer before the run continues, so the response ends here.
        if question.is_awaited {
            self.end = Some(ResponseEnd::Completed);
        }
    }

    /// Closes what is open at the end.
    fn close_items(&mut self) {
        self.close_message("completed");
        let mut calls: Vec<_> = std::mem::take(&mut self.calls).into_values().collect();
        // In a fixed order, so that a resumed stream has the same numbers.
        calls.sort_by_key(|item| item.index);
        for item in calls {
            self.items[item.index] = item.value("incomplete");
            self.emit_all(item.end_events("incomplete"));
        }
    }
}

impl FaceWriter for ResponseWriter {
    fn begin(&mut self) -> String {
        self.emit_response("response.created", None);
        self.emit_response("response.in_progress", None);
        std::mem::take(&mut self.frames)
    }

    fn write(&mut self, event: &AgentRunEvent) -> String {
        self.reported = reported_tokens(event).or(self.reported);
        for change in self.open.changes(event) {
            self.apply(change);
        }
        match ResultType::parse(&event.kind) {
            Some(ResultType::ToolCallStarted) => self.begin_call(&event.data),
            Some(ResultType::ToolCallCompleted) => self.end_call(&event.data),
            Some(ResultType::ArtifactCreated) => {
                if let Some(payload) = data_of::<ArtifactCreatedPayload>(event) {
                    self.add_artifact(&payload.artifact_id);
                }
            }
            Some(ResultType::ActionRequested) => {
                if let Some(question) = OpenQuestion::of(event) {
                    self.ask(&question);
                }
            }
            Some(ResultType::RunCompleted) => {
                let payload = data_of::<RunCompletedPayload>(event);
                let reason = payload.map(|payload| payload.finish_reason);
                self.end = Some(match reason.as_deref() {
                    Some("length" | "max_tokens") => ResponseEnd::Incomplete("max_output_tokens"),
                    Some("content_filter") => ResponseEnd::Incomplete("content_filter"),
                    _ => ResponseEnd::Completed,
                });
            }
            Some(ResultType::RunFailed) => {
                let payload = data_of::<RunFailedPayload>(event);
                let (code, message) = payload.map_or_else(Default::default, |payload| {
                    (payload.code, payload.message.or(payload.error))
                });
                let message = message.unwrap_or_default();
                self.end = Some(ResponseEnd::Failed { code, message });
            }
            _ => {}
        }
        if self.end.is_none() && self.bytes() > ANSWER_BYTES {
            self.end = Some(ResponseEnd::Incomplete("max_output_tokens"));
        }
        // In the same step, so that the numbers do not depend on the read.
        if self.end.is_some() {
            self.ended_at = event.created_at;
            self.close_items();
        }
        std::mem::take(&mut self.frames)
    }

    fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn finish(&mut self, tokens: Option<TokenParts>) -> String {
        let kind = match &self.end {
            Some(ResponseEnd::Failed { .. }) => "response.failed",
            Some(ResponseEnd::Incomplete(_)) => "response.incomplete",
            Some(ResponseEnd::Completed) | None => "response.completed",
        };
        self.emit_response(kind, tokens);
        std::mem::take(&mut self.frames)
    }

    fn cut(&mut self) -> String {
        // The client resumes after the last event that it has.
        String::new()
    }

    fn bytes(&self) -> usize {
        // The last event has the texts again.
        2 * self.bytes + self.open.bytes()
    }
}

fn data_of<T: DeserializeOwned>(event: &AgentRunEvent) -> Option<T> {
    serde_json::from_value(Value::Object(event.data.clone())).ok()
}

fn usage_of(tokens: TokenParts) -> Value {
    let (input, output) = (tokens.prompt(), tokens.completion());
    json!({
        "input_tokens": input,
        "input_tokens_details": {"cached_tokens": tokens.cache_read},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning},
        "total_tokens": input.saturating_add(output),
    })
}

#[cfg(test)]
mod tests;
