//! Messages for the user: deltas of a growing text, and one complete message at the end.

use protocol::context::AgentRunContext;
use protocol::message::{Message, MessageChunk, MessageContent};
use protocol::result::{AgentRunResult, MessageDeltaPayload, ResultType};
use runner_kit::{ResultSender, results};
use serde::Serialize;
use serde_json::Value;

use crate::output_limit::OutputLimit;

/// A delta is sent once it is at least 1/`FRACTION` of the text: the number of deltas grows logarithmically.
const FRACTION: usize = 64;

/// Writer of one run's results. One text is live at a time: notes, then the answer. A new text replaces the previous
/// one by a delta with the complete text.
#[derive(Debug)]
pub(crate) struct ResultWriter {
    out: ResultSender,
    streaming: bool,
    output_limit: OutputLimit,
    /// Text of the live note or answer.
    text: String,
    /// Bytes of the live text that were sent.
    sent: usize,
    /// The client has a text that the next delta replaces.
    replaces: bool,
    sequence: i64,
}

impl ResultWriter {
    /// Writer for a run with this context.
    pub(crate) fn new(out: ResultSender, context: &AgentRunContext) -> Self {
        // The gateway may disable streaming for a surface that supports it.
        let host = context.runtime.metadata.get("streaming_supported");
        let host = host.and_then(Value::as_bool).unwrap_or(true);
        Self {
            out,
            streaming: host && context.delivery.supports_streaming,
            output_limit: OutputLimit::of(context),
            text: String::new(),
            sent: 0,
            replaces: false,
            sequence: 0,
        }
    }

    /// True if the client receives deltas.
    pub(crate) fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// Size limit of the data of one result.
    pub(crate) fn output_limit(&self) -> OutputLimit {
        self.output_limit
    }

    /// Sends a result that is no message.
    pub(crate) async fn send(&self, result: AgentRunResult) {
        self.out.send(result).await;
    }

    /// Starts a new live text.
    pub(crate) fn begin(&mut self) {
        self.replaces |= self.sent > 0;
        self.text.clear();
        self.sent = 0;
    }

    /// Replaces the live text by a note and sends it as a delta.
    pub(crate) async fn note(&mut self, note: &str) {
        if note.trim().is_empty() || self.text == note {
            return;
        }
        self.begin();
        self.text.push_str(note);
        self.flush(false).await;
    }

    /// Appends a piece to the live text.
    pub(crate) async fn append(&mut self, piece: &str) {
        self.text.push_str(piece);
        if (self.text.len() - self.sent) * FRACTION >= self.text.len() {
            self.flush(false).await;
        }
    }

    /// Sends the unsent part of the live text.
    pub(crate) async fn flush(&mut self, is_final: bool) {
        if self.streaming && (self.sent < self.text.len() || is_final) {
            self.send_rest(is_final).await;
        }
    }

    /// Sends the complete message.
    pub(crate) async fn complete(&mut self, text: &str) {
        // The final text differs from the streamed one and replaces it.
        if !text.starts_with(&self.text) || self.text.is_empty() {
            self.begin();
        }
        let rest = text[self.text.len()..].to_owned();
        self.text.push_str(&rest);
        self.flush(true).await;
        let completed = results::message_completed(Message::text("assistant", text), Vec::new());
        if self.output_limit.holds(&completed.data) {
            self.send(completed).await;
        // A text that exceeds one result is sent in deltas only; the gateway joins them to a message.
        } else if !self.streaming {
            self.send_rest(true).await;
        }
    }

    async fn send_rest(&mut self, is_final: bool) {
        let half = self.output_limit.half();
        loop {
            let piece = half.beginning(&self.text[self.sent..]).to_owned();
            self.sent += piece.len();
            let is_last = self.sent == self.text.len();
            self.chunk(piece, is_last && is_final).await;
            if is_last {
                return;
            }
        }
    }

    async fn chunk(&mut self, piece: String, is_final: bool) {
        self.sequence += 1;
        let full_text = (self.replaces || is_final).then(|| self.text[..self.sent].to_owned());
        let chunk = MessageChunk {
            role: "assistant".to_owned(),
            content: (!piece.is_empty()).then_some(MessageContent::Text(piece)),
            all_content: full_text,
            is_final,
            msg_sequence: Some(self.sequence),
            ..MessageChunk::default()
        };
        let mut payload = MessageDeltaPayload { chunk };
        // The repetition is optional, the new piece is not. A pending replacement moves to a later delta.
        if !self.output_limit.holds(&payload) {
            payload.chunk.all_content = None;
        }
        self.replaces &= payload.chunk.all_content.is_none();
        self.send(typed_result(ResultType::MessageDelta, &payload))
            .await;
    }
}

/// Result of a protocol type.
pub(crate) fn typed_result(kind: ResultType, payload: &impl Serialize) -> AgentRunResult {
    custom(kind.as_str(), payload)
}

/// Result of any type.
pub(crate) fn custom(kind: &str, payload: &impl Serialize) -> AgentRunResult {
    let data = serde_json::to_value(payload).ok();
    let data = data.and_then(|data| data.as_object().cloned());
    results::custom(kind, data.unwrap_or_default())
}
