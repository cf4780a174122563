//! Output to the user: the texts of all turns as one message.

use agent_core::output::{DeltaWriter, FullText, LineLimit};
use protocol::context::AgentRunContext;
use protocol::message::{Message, ToolCall};
use protocol::result::AgentRunResult;
use runner_kit::{ResultSender, results};

use crate::config::Config;

/// Sends the output of a run. The texts of its turns form one message.
#[derive(Debug)]
pub(crate) struct MessageWriter {
    deltas: DeltaWriter,
    /// Start offset of the current turn.
    turn: usize,
}

impl MessageWriter {
    /// Creates the writer for a run.
    pub(crate) fn new(out: ResultSender, context: &AgentRunContext, config: &Config) -> Self {
        let full_text = if config.all_content {
            FullText::Often
        } else {
            FullText::AfterRetraction
        };
        Self {
            deltas: DeltaWriter::new(out, context, full_text),
            turn: 0,
        }
    }

    /// True when the client shows deltas.
    pub(crate) fn is_streaming(&self) -> bool {
        self.deltas.is_streaming()
    }

    /// Limit of the data of a result.
    pub(crate) fn line_limit(&self) -> LineLimit {
        self.deltas.limit()
    }

    /// Sends a result of another type.
    pub(crate) async fn send(&self, result: AgentRunResult) {
        self.deltas.send(result).await;
    }

    /// Starts the next turn; its text is appended.
    pub(crate) fn begin_turn(&mut self) {
        self.turn = self.deltas.text().len();
        self.deltas.restart_sequence();
    }

    /// Appends text of the model.
    pub(crate) async fn append(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        // A blank line separates the texts of two turns, which the client shows as one message.
        let before = self.deltas.text();
        if self.turn > 0 && before.len() == self.turn && !before.ends_with(char::is_whitespace) {
            self.deltas.hold("\n\n");
        }
        self.deltas.append(text).await;
    }

    /// Retracts the text of this turn: it was reasoning.
    pub(crate) fn start_turn_over(&mut self) {
        self.deltas.retract_to(self.turn);
    }

    /// Sends buffered text.
    pub(crate) async fn flush(&mut self) {
        self.deltas.flush().await;
    }

    /// Ends the turn. Its tool calls go with its last delta.
    pub(crate) async fn end_turn(&mut self, calls: &[ToolCall]) {
        // The final delta is sent even without new text: it ends the turn, or retracts what the client shows.
        let has_text = self.deltas.text().len() > self.turn;
        if has_text || self.deltas.has_retracted() || !calls.is_empty() {
            let calls = (!calls.is_empty()).then(|| shown(calls));
            self.deltas.end(calls).await;
        }
    }

    /// Sends the complete message once: the texts of all turns, or `last` when no text was streamed. Tool calls
    /// that exceed the limit are left out, because results of their own report them. A text that exceeds the
    /// limit is sent as deltas only; the host builds the message.
    pub(crate) async fn complete(&mut self, last: &Message) {
        let text = self.deltas.text();
        // Clients without streaming may get the original message, with parts and fields that plain text lacks.
        let is_all = !self.is_streaming() && last.plain_text() == text;
        let mut message = if text.is_empty() || is_all {
            Message {
                provider_specific_fields: None,
                tool_calls: last.tool_calls.as_deref().map(shown),
                ..last.clone()
            }
        } else {
            Message::text("assistant", text)
        };
        // Measured as serialised, because the gateway counts bytes of the line.
        let mut completed = results::message_completed(message.clone(), Vec::new());
        if message.tool_calls.is_some() && !self.line_limit().holds(&completed.data) {
            message.tool_calls = None;
            completed = results::message_completed(message, Vec::new());
        }
        self.deltas.complete(completed).await;
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
