//! Output to the user: deltas while a model streams, where the surface shows them, and one complete message at
//! the end.

use protocol::context::AgentRunContext;
use protocol::message::{Message, MessageChunk, MessageContent, ToolCall};
use protocol::result::{AgentRunResult, MessageDeltaPayload, ResultType};
use runner_kit::{ResultSender, results};
use serde::Serialize;
use serde_json::Value;

use crate::config::Config;
use crate::output_limit::LineLimit;

/// Bounds the deltas of a turn to about this many times the size of its text, at any pace. A delta waits until
/// it adds this part of the text. With `all-content` it carries the complete text when that much is new, or when
/// its turn ends.
const REPEATS: usize = 64;

/// Sends the output of a run. The texts of its turns form one message.
#[derive(Debug)]
pub(crate) struct MessageWriter {
    out: ResultSender,
    /// True when the client shows deltas.
    streaming: bool,
    /// Deltas carry the complete text, for clients that cannot join increments.
    all_content: bool,
    line_limit: LineLimit,
    /// Text of this run so far.
    run_text: String,
    /// Length of the prefix that was sent.
    sent: usize,
    /// Length of the text in the last delta with complete text.
    last_full_len: usize,
    /// Start offset of the current turn.
    turn: usize,
    sequence: i64,
    /// The client shows text that was retracted: the next delta carries the complete text.
    has_retracted: bool,
}

impl MessageWriter {
    /// Creates the writer for a run.
    pub(crate) fn new(out: ResultSender, context: &AgentRunContext, config: &Config) -> Self {
        Self {
            out,
            streaming: is_streaming(context),
            all_content: config.all_content,
            line_limit: LineLimit::of(context),
            run_text: String::new(),
            sent: 0,
            last_full_len: 0,
            turn: 0,
            sequence: 0,
            has_retracted: false,
        }
    }

    /// True when the client shows deltas.
    pub(crate) fn is_streaming(&self) -> bool {
        self.streaming
    }

    /// Limit of the data of a result.
    pub(crate) fn line_limit(&self) -> LineLimit {
        self.line_limit
    }

    /// Sends a result of another type.
    pub(crate) async fn send(&self, result: AgentRunResult) {
        self.out.send(result).await;
    }

    /// Starts the next turn; its text is appended.
    pub(crate) fn begin_turn(&mut self) {
        self.turn = self.run_text.len();
        self.sequence = 0;
    }

    /// Appends text of the model.
    pub(crate) async fn append(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        // A blank line separates the texts of two turns, which the client shows as one message.
        if self.turn > 0
            && self.run_text.len() == self.turn
            && !self.run_text.ends_with(char::is_whitespace)
        {
            self.run_text.push_str("\n\n");
        }
        self.run_text.push_str(text);
        // Withholds small deltas: together the deltas stay proportional to the text.
        if (self.run_text.len() - self.sent) * REPEATS >= self.run_text.len() {
            self.flush().await;
        }
    }

    /// Retracts the text of this turn: it was reasoning.
    pub(crate) fn start_turn_over(&mut self) {
        self.run_text.truncate(self.turn);
        // Only text that left this process must be retracted at the client.
        self.has_retracted |= self.sent > self.turn;
        self.sent = self.sent.min(self.turn);
        self.last_full_len = self.last_full_len.min(self.turn);
    }

    /// Sends buffered text.
    pub(crate) async fn flush(&mut self) {
        if self.sent < self.run_text.len() {
            self.delta(false, None).await;
        }
    }

    /// Ends the turn. Its tool calls go with its last delta.
    pub(crate) async fn end_turn(&mut self, calls: &[ToolCall]) {
        // The final delta is sent even without new text: it ends the turn, or retracts what the client shows.
        let has_text = self.run_text.len() > self.turn;
        if has_text || self.has_retracted || !calls.is_empty() {
            let calls = (!calls.is_empty()).then(|| shown(calls));
            self.delta(true, calls).await;
        }
    }

    /// Sends the complete message once: the texts of all turns, or `last` when no text was streamed. Tool calls
    /// that exceed the limit are left out, because results of their own report them. A text that exceeds the
    /// limit is sent as deltas only; the host builds the message.
    pub(crate) async fn complete(&mut self, last: &Message) {
        // Clients without streaming may get the original message, with parts and fields that plain text lacks.
        let is_all = !self.streaming && last.plain_text() == self.run_text;
        let mut message = if self.run_text.is_empty() || is_all {
            Message {
                provider_specific_fields: None,
                tool_calls: last.tool_calls.as_deref().map(shown),
                ..last.clone()
            }
        } else {
            Message::text("assistant", &self.run_text)
        };
        // Measured as serialised, because the gateway counts bytes of the line.
        let mut completed = results::message_completed(message.clone(), Vec::new());
        if message.tool_calls.is_some() && !self.line_limit.holds(&completed.data) {
            message.tool_calls = None;
            completed = results::message_completed(message, Vec::new());
        }
        if self.line_limit.holds(&completed.data) {
            self.send(completed).await;
        // No complete message fits: the unsent rest goes as deltas, even to clients without streaming.
        } else if self.sent < self.run_text.len() {
            self.send_deltas(true, None).await;
        }
    }

    async fn delta(&mut self, is_final: bool, tool_calls: Option<Vec<ToolCall>>) {
        if self.streaming {
            self.send_deltas(is_final, tool_calls).await;
        }
    }

    /// Sends unsent text in as many deltas as needed. Tool calls that exceed the limit appear only in results of
    /// their own.
    async fn send_deltas(&mut self, is_final: bool, tool_calls: Option<Vec<ToolCall>>) {
        // Half for new text; the rest for tool calls and the complete text of the same delta.
        let half = self.line_limit.half();
        let tool_calls = tool_calls.filter(|calls| half.half().holds(calls));
        loop {
            let new = half.beginning(&self.run_text[self.sent..]).to_owned();
            self.sent += new.len();
            // Only the last piece is final and carries the calls: clients end the turn there.
            if self.sent == self.run_text.len() {
                return self.chunk(new, is_final, tool_calls).await;
            }
            self.chunk(new, false, None).await;
        }
    }

    async fn chunk(&mut self, new: String, is_final: bool, tool_calls: Option<Vec<ToolCall>>) {
        self.sequence += 1;
        let is_much_new = (self.sent - self.last_full_len) * REPEATS >= self.sent;
        let is_due = self.all_content && (is_final || is_much_new);
        let has_full_text = is_due || self.has_retracted;
        let full_text = has_full_text.then(|| self.run_text[..self.sent].to_owned());
        let has_content = !new.is_empty() || full_text.is_none();
        let chunk = MessageChunk {
            role: "assistant".to_owned(),
            content: has_content.then_some(MessageContent::Text(new)),
            all_content: full_text,
            tool_calls,
            is_final,
            msg_sequence: Some(self.sequence),
            ..MessageChunk::default()
        };
        let mut payload = MessageDeltaPayload { chunk };
        // A longer line would fail the run, so the complete text gives way.
        if !self.line_limit.holds(&payload) {
            payload.chunk.all_content = None;
        }
        // Not reset without the complete text: the client still shows retracted text.
        if payload.chunk.all_content.is_some() {
            self.last_full_len = self.sent;
            self.has_retracted = false;
        }
        self.send(typed_result(ResultType::MessageDelta, &payload))
            .await;
    }
}

/// Tool calls for display, without provider fields.
fn shown(calls: &[ToolCall]) -> Vec<ToolCall> {
    let shown = calls.iter().map(|call| ToolCall {
        provider_specific_fields: None,
        ..call.clone()
    });
    shown.collect()
}

fn is_streaming(context: &AgentRunContext) -> bool {
    // A host without this metadata supports streaming.
    let host = context.runtime.metadata.get("streaming_supported");
    let host = host.and_then(Value::as_bool).unwrap_or(true);
    host && context.delivery.supports_streaming
}

/// Result of a protocol type.
pub(crate) fn typed_result(kind: ResultType, payload: &impl Serialize) -> AgentRunResult {
    let data = serde_json::to_value(payload).ok();
    let data = data.and_then(|data| data.as_object().cloned());
    results::custom(kind.as_str(), data.unwrap_or_default())
}
