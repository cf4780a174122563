//! What the user hears: deltas while a model speaks, and one whole message at the end.

use protocol::message::{Message, MessageChunk, MessageContent, ToolCall};
use protocol::result::{AgentRunResult, MessageDeltaPayload, ResultType};
use runner_kit::{Results, results};
use serde::Serialize;

/// A delta carries the whole text so far. It waits until it adds this part of it, so that all deltas of an
/// answer together are at most about this many times its size.
const REPEATS: usize = 64;

/// Says what a run has to say. The texts of its turns are one message.
#[derive(Debug)]
pub(crate) struct Speaker {
    out: Results,
    /// All that was said in this run.
    said: String,
    /// Of it, what the client has.
    sent: usize,
    /// Where the present turn begins.
    turn: usize,
    sequence: i64,
}

impl Speaker {
    pub(crate) fn new(out: Results) -> Self {
        Self {
            out,
            said: String::new(),
            sent: 0,
            turn: 0,
            sequence: 0,
        }
    }

    /// Sends a result of another kind.
    pub(crate) async fn send(&self, result: AgentRunResult) {
        self.out.send(result).await;
    }

    /// The next turn begins: its text goes on where those before ended.
    pub(crate) fn begin_turn(&mut self) {
        self.turn = self.said.len();
        self.sequence = 0;
    }

    /// The model has said a little more.
    pub(crate) async fn say(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.turn > 0
            && self.said.len() == self.turn
            && !self.said.ends_with(char::is_whitespace)
        {
            self.said.push_str("\n\n");
        }
        self.said.push_str(text);
        if (self.said.len() - self.sent) * REPEATS >= self.said.len() {
            self.flush().await;
        }
    }

    /// Sends what waits.
    pub(crate) async fn flush(&mut self) {
        if self.sent < self.said.len() {
            self.delta(false, None).await;
        }
    }

    /// The turn is over. Its tool calls go along with its last delta.
    pub(crate) async fn end_turn(&mut self, calls: &[ToolCall]) {
        let has_spoken = self.said.len() > self.turn;
        if has_spoken || !calls.is_empty() {
            let calls = (!calls.is_empty()).then(|| calls.to_vec());
            self.delta(true, calls).await;
        }
    }

    /// The whole message, once: what the deltas said, or `last` where nothing was streamed.
    pub(crate) async fn complete(&self, last: &Message) {
        let message = if self.said.is_empty() {
            Message {
                provider_specific_fields: None,
                ..last.clone()
            }
        } else {
            Message::text("assistant", &self.said)
        };
        self.send(results::message_completed(message, Vec::new()))
            .await;
    }

    async fn delta(&mut self, is_final: bool, tool_calls: Option<Vec<ToolCall>>) {
        self.sequence += 1;
        let new = &self.said[self.sent..];
        let chunk = MessageChunk {
            role: "assistant".to_owned(),
            content: (!new.is_empty()).then(|| MessageContent::Text(new.to_owned())),
            all_content: Some(self.said.clone()),
            tool_calls,
            is_final,
            msg_sequence: Some(self.sequence),
            ..MessageChunk::default()
        };
        self.sent = self.said.len();
        self.send(known(
            ResultType::MessageDelta,
            &MessageDeltaPayload { chunk },
        ))
        .await;
    }
}

/// A result of a type of the protocol.
pub(crate) fn known(kind: ResultType, payload: &impl Serialize) -> AgentRunResult {
    let data = serde_json::to_value(payload).ok();
    let data = data.and_then(|data| data.as_object().cloned());
    results::custom(kind.as_str(), data.unwrap_or_default())
}
