//! Text of a run: deltas while it grows, where the surface shows them, and one complete message.

use protocol::context::AgentRunContext;
use protocol::message::{MessageChunk, MessageContent, ToolCall};
use protocol::result::{AgentRunResult, MessageDeltaPayload, ResultType};
use runner_kit::{ResultSender, results};
use serde_json::Value;

use super::LineLimit;

/// Bounds the deltas of a text to about this many times its size, at any pace. A delta waits until it adds this
/// part of the text.
const REPEATS: usize = 64;

/// Deltas that repeat the text so far (`all_content`). A delta after a retraction always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FullText {
    /// No others.
    AfterRetraction,
    /// The final one.
    AtEnd,
    /// The final one, and each one once a 64th of the text is new: for clients that cannot join increments.
    Often,
}

/// Writer of a growing text of one run. Small deltas wait for more text.
#[derive(Debug)]
pub struct DeltaWriter {
    out: ResultSender,
    /// True if the client shows deltas.
    streaming: bool,
    limit: LineLimit,
    full_text: FullText,
    text: String,
    /// Length of the prefix that was sent.
    sent: usize,
    /// Length of the text in the last delta that repeated it.
    repeated: usize,
    sequence: i64,
    /// The client shows text that was retracted: the next delta repeats the text so far.
    has_retracted: bool,
}

impl DeltaWriter {
    /// Writer without text for a run with this context.
    pub fn new(out: ResultSender, context: &AgentRunContext, full_text: FullText) -> Self {
        // The gateway may disable streaming for a surface that supports it. Without this metadata it streams.
        let host = context.runtime.metadata.get("streaming_supported");
        let host = host.and_then(Value::as_bool).unwrap_or(true);
        Self {
            out,
            streaming: host && context.delivery.supports_streaming,
            limit: LineLimit::of(context),
            full_text,
            text: String::new(),
            sent: 0,
            repeated: 0,
            sequence: 0,
            has_retracted: false,
        }
    }

    /// True if the client shows deltas.
    pub fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// Limit of the data of one result.
    pub fn limit(&self) -> LineLimit {
        self.limit
    }

    /// The text so far, sent or not.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// True if the client shows text that was retracted.
    pub fn has_retracted(&self) -> bool {
        self.has_retracted
    }

    /// Sends a result that is no text.
    pub async fn send(&self, result: AgentRunResult) {
        self.out.send(result).await;
    }

    /// Numbers the next delta as the first one.
    pub fn restart_sequence(&mut self) {
        self.sequence = 0;
    }

    /// Appends a piece. It is sent once enough of the text is new.
    pub async fn append(&mut self, piece: &str) {
        self.text.push_str(piece);
        // Withholds small deltas: together the deltas stay proportional to the text.
        if (self.text.len() - self.sent) * REPEATS >= self.text.len() {
            self.flush().await;
        }
    }

    /// Appends a piece without sending it.
    pub fn hold(&mut self, piece: &str) {
        self.text.push_str(piece);
    }

    /// Removes the text after `length` bytes, a character boundary.
    pub fn retract_to(&mut self, length: usize) {
        self.text.truncate(length);
        // Only text that left this process must be retracted at the client.
        self.has_retracted |= self.sent > length;
        self.sent = self.sent.min(length);
        self.repeated = self.repeated.min(length);
    }

    /// Sends the unsent text.
    pub async fn flush(&mut self) {
        if self.streaming && self.sent < self.text.len() {
            self.send_rest(false, None).await;
        }
    }

    /// Sends the unsent text and ends with a final delta, which carries the tool calls. Calls that exceed a quarter
    /// of the limit are left out.
    pub async fn end(&mut self, calls: Option<Vec<ToolCall>>) {
        if self.streaming {
            self.send_rest(true, calls).await;
        }
    }

    /// Sends `message.completed` if it is within the limit. Otherwise sends the unsent text as deltas, even to
    /// clients without streaming: the gateway joins them to a message.
    pub async fn complete(&mut self, completed: AgentRunResult) {
        if self.limit.holds(&completed.data) {
            self.send(completed).await;
        } else if self.sent < self.text.len() {
            self.send_rest(true, None).await;
        }
    }

    async fn send_rest(&mut self, is_final: bool, calls: Option<Vec<ToolCall>>) {
        // Half for new text; the rest for tool calls and the text so far in the same delta.
        let half = self.limit.half();
        let calls = calls.filter(|calls| half.half().holds(calls));
        loop {
            let piece = half.beginning(&self.text[self.sent..]).to_owned();
            self.sent += piece.len();
            // Only the last piece is final and carries the calls: clients end the turn there.
            if self.sent == self.text.len() {
                return self.send_delta(piece, is_final, calls).await;
            }
            self.send_delta(piece, false, None).await;
        }
    }

    async fn send_delta(&mut self, piece: String, is_final: bool, calls: Option<Vec<ToolCall>>) {
        self.sequence += 1;
        let is_much_new = (self.sent - self.repeated) * REPEATS >= self.sent;
        let is_due = match self.full_text {
            FullText::AfterRetraction => false,
            FullText::AtEnd => is_final,
            FullText::Often => is_final || is_much_new,
        };
        let full_text = (is_due || self.has_retracted).then(|| self.text[..self.sent].to_owned());
        let has_content = !piece.is_empty() || full_text.is_none();
        let chunk = MessageChunk {
            role: "assistant".to_owned(),
            content: has_content.then_some(MessageContent::Text(piece)),
            all_content: full_text,
            tool_calls: calls,
            is_final,
            msg_sequence: Some(self.sequence),
            ..MessageChunk::default()
        };
        let mut payload = MessageDeltaPayload { chunk };
        // A longer line would fail the run, so the text so far gives way.
        if !self.limit.holds(&payload) {
            payload.chunk.all_content = None;
        }
        // A pending retraction moves to a later delta: the client still shows the text.
        if payload.chunk.all_content.is_some() {
            self.repeated = self.sent;
            self.has_retracted = false;
        }
        self.send(results::typed(ResultType::MessageDelta, &payload))
            .await;
    }
}
