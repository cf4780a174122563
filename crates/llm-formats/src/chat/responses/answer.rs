//! Converts completion chunks to response events: a state machine without I/O.

mod calls;
mod texts;

use std::collections::BTreeMap;

use protocol::JsonObject;
use protocol::message::LlmTokenUsage;
use serde_json::{Value, json};

use super::ask::ResponsesRequest;
use super::envelope::ReasoningEnvelope;
use super::head::{ResponseHead, echo};
use super::item::{ItemBody, OutputItem, TextKind};
use super::tools::FunctionNames;
use crate::chat::carried::Reasoning;
use crate::chat::{finish_reason, plain_text, reasoning, text_of};
use calls::StreamedCall;
use domain::usage::{add_usage, usage_of};

/// Maximum bytes of one answer, buffered for its last event.
pub const ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Bytes charged for an item or part in addition to its text.
const ITEM_BYTES: usize = 256;

/// The answer exceeds the buffer limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the answer is larger than {ANSWER_BYTES} bytes")]
pub struct AnswerTooLarge;

/// Writes the events of one response.
#[derive(Debug)]
pub struct ResponseEventWriter {
    head: ResponseHead,
    echo: JsonObject,
    names: FunctionNames,
    returns_reasoning: bool,
    keeps_items: bool,
    sequence: u64,
    /// Events that the caller has not taken yet.
    events: Vec<Value>,
    items: Vec<OutputItem>,
    /// The open message or reasoning item.
    open: Option<usize>,
    calls: BTreeMap<u64, StreamedCall>,
    reasoning_members: Reasoning,
    carried: BTreeMap<String, JsonObject>,
    bytes: usize,
    usage: Option<LlmTokenUsage>,
    reason: Option<String>,
}

impl ResponseEventWriter {
    /// Creates a writer for the answer to this request.
    pub fn new(
        head: ResponseHead,
        request: &JsonObject,
        responses_request: &ResponsesRequest,
    ) -> Self {
        Self {
            head,
            echo: echo(request),
            names: responses_request.names.clone(),
            returns_reasoning: responses_request.returns_reasoning,
            keeps_items: responses_request.keeps_items,
            sequence: 0,
            events: Vec::new(),
            items: Vec::new(),
            open: None,
            calls: BTreeMap::new(),
            reasoning_members: Reasoning::default(),
            carried: BTreeMap::new(),
            bytes: 0,
            usage: None,
            reason: None,
        }
    }

    /// Returns the first two events.
    pub fn begin(&mut self) -> Vec<Value> {
        let names = ["response.created", "response.in_progress"];
        // Both events have the same empty response, as OpenAI sends them.
        for name in names {
            let response = self.response("in_progress");
            self.event(name, json!({"response": response}));
        }
        std::mem::take(&mut self.events)
    }

    /// Returns the events of one chunk or of a complete completion.
    pub fn read(&mut self, chunk: &JsonObject) -> Result<Vec<Value>, AnswerTooLarge> {
        // Usage comes in a chunk without choices.
        if let Some(usage) = usage_of(chunk) {
            add_usage(&mut self.usage, usage);
        }
        let choices = chunk.get("choices").and_then(Value::as_array);
        // A response has one answer; further choices have no representation.
        let is_first = |choice: &&Value| choice["index"].as_u64().unwrap_or(0) == 0;
        let Some(choice) = choices.and_then(|choices| choices.iter().find(is_first)) else {
            return Ok(Vec::new());
        };
        if let Some(reason) = finish_reason(choice) {
            self.reason = Some(reason.to_owned());
        }
        // A provider may send a complete completion instead of chunks.
        let delta = choice.get("delta").or_else(|| choice.get("message"));
        let Some(delta) = delta else {
            return Ok(Vec::new());
        };
        if self.collects_reasoning() {
            self.reasoning_members.add(delta);
        }
        // Reasoning precedes content in a chunk that has both.
        if let Some(text) = reasoning(delta) {
            self.write_text(TextKind::Reasoning, text);
        }
        let text = delta.get("content").map(plain_text).unwrap_or_default();
        self.write_text(TextKind::Answer, &text);
        let refusal = text_of(delta, "refusal").unwrap_or_default();
        self.write_text(TextKind::Refusal, &refusal);
        let calls = delta.get("tool_calls").and_then(Value::as_array);
        for (n, call) in (0..).zip(calls.into_iter().flatten()) {
            self.call(call["index"].as_u64().unwrap_or(n), call);
        }
        // After the events, since the caller discards them on this error.
        if self.bytes > ANSWER_BYTES {
            return Err(AnswerTooLarge);
        }
        Ok(std::mem::take(&mut self.events))
    }

    /// Returns true after the provider sent a finish reason.
    pub fn has_finished(&self) -> bool {
        self.reason.is_some()
    }

    /// Returns the last events of a complete answer.
    pub fn finish(mut self) -> Vec<Value> {
        // Other reasons, such as `stop` and `tool_calls`, are complete answers.
        let incomplete = match self.reason.as_deref() {
            Some("length") => Some("max_output_tokens"),
            Some("content_filter") => Some("content_filter"),
            _ => None,
        };
        let status = if incomplete.is_some() {
            "incomplete"
        } else {
            "completed"
        };
        // Open items get the status of the response: an incomplete answer has incomplete items.
        self.close_open(status);
        self.close_calls(status);
        // After the calls: the envelope needs the members of all of them.
        self.carry();
        let mut response = self.response(status);
        if let Some(reason) = incomplete {
            response["incomplete_details"] = json!({"reason": reason});
        }
        self.event(&format!("response.{status}"), json!({"response": response}));
        self.events
    }

    /// Returns the last event of a failed answer, with OpenAI's error code.
    pub fn fail(mut self, code: &str, message: &str) -> Value {
        // The open item has no status yet, so the response excludes it: clients must not run an incomplete call.
        let mut response = self.response("failed");
        response["error"] = json!({"code": code, "message": message});
        self.numbered("response.failed", json!({"response": response}))
    }

    /// Returns the response to a complete completion, and its [`Self::unsent_reasoning`].
    pub fn complete(
        mut self,
        completion: &JsonObject,
    ) -> Result<(Value, Option<String>), AnswerTooLarge> {
        self.read(completion)?;
        // Before `finish`, which moves the reasoning into the answer.
        let unsent = self.unsent_reasoning();
        let last = self.finish().pop();
        let response = last.map(|mut last| last["response"].take());
        Ok((response.unwrap_or_default(), unsent))
    }

    /// Returns the reasoning that must return to the model with the tool results, and that the client did not ask
    /// for. Requests that refer to the calls need it.
    pub fn unsent_reasoning(&self) -> Option<String> {
        // Without calls, no later request refers to the reasoning.
        if self.returns_reasoning || !self.keeps_items || self.calls.is_empty() {
            return None;
        }
        let envelope = ReasoningEnvelope {
            reasoning_members: self.reasoning_members.clone().members(true),
            calls: self.carried.clone(),
        };
        envelope.seal(&self.head.model)
    }

    fn collects_reasoning(&self) -> bool {
        self.returns_reasoning || self.keeps_items
    }

    fn event(&mut self, name: &str, members: Value) {
        let event = self.numbered(name, members);
        self.events.push(event);
    }

    fn numbered(&mut self, name: &str, mut members: Value) -> Value {
        members["type"] = json!(name);
        members["sequence_number"] = json!(self.sequence);
        // Clients detect lost events by this number.
        self.sequence += 1;
        members
    }

    /// Adds an item and its event.
    fn add(&mut self, body: ItemBody) -> usize {
        let output = self.items.len();
        let id = format!("{}_{}{output}", OutputItem::prefix(&body), self.head.key);
        let item = OutputItem {
            id,
            body,
            status: None,
        };
        let value = item.value("in_progress");
        self.items.push(item);
        // Charged also for empty items: an answer of a million empty calls must hit the limit.
        self.bytes += ITEM_BYTES;
        let added = json!({"output_index": output, "item": value});
        self.event("response.output_item.added", added);
        output
    }

    fn close_item(&mut self, output: usize, status: &'static str) {
        self.items[output].status = Some(status);
        let item = self.items[output].value(status);
        let done = json!({"output_index": output, "item": item});
        self.event("response.output_item.done", done);
    }

    /// Adds an item with the members that must return to the model with the tool results.
    fn carry(&mut self) {
        if !self.returns_reasoning || self.calls.is_empty() {
            return;
        }
        let envelope = ReasoningEnvelope {
            reasoning_members: std::mem::take(&mut self.reasoning_members).members(true),
            calls: std::mem::take(&mut self.carried),
        };
        if let Some(sealed) = envelope.seal(&self.head.model) {
            let output = self.add(ItemBody::Carried(sealed));
            self.close_item(output, "completed");
        }
    }

    /// Returns the current response with its finished items.
    fn response(&self, status: &str) -> Value {
        // Items without a status are unfinished.
        let done = self
            .items
            .iter()
            .filter_map(|item| Some(item.value(item.status?)));
        let output = done.collect();
        let usage = super::usage(self.usage.as_ref());
        self.head.response(&self.echo, status, output, &usage)
    }
}

#[cfg(test)]
mod tests;
