//! Messages for the user: deltas of a growing text, and one complete message at the end.

use agent_core::output::{DeltaWriter, FullText, LineLimit};
use protocol::JsonObject;
use protocol::context::AgentRunContext;
use protocol::message::Message;
use protocol::result::AgentRunResult;
use runner_kit::{ResultSender, results};

/// Writer of one run's results. One text is live at a time: notes, then the answer. A new text replaces the previous
/// one by a delta with the complete text.
#[derive(Debug)]
pub(crate) struct ResultWriter(DeltaWriter);

impl ResultWriter {
    /// Writer for a run with this context.
    pub(crate) fn new(out: ResultSender, context: &AgentRunContext) -> Self {
        Self(DeltaWriter::new(out, context, FullText::AtEnd))
    }

    /// True if the client receives deltas.
    pub(crate) fn is_streaming(&self) -> bool {
        self.0.is_streaming()
    }

    /// Size limit of the data of one result.
    pub(crate) fn line_limit(&self) -> LineLimit {
        self.0.limit()
    }

    /// Sends a result that is no message.
    pub(crate) async fn send(&self, result: AgentRunResult) {
        self.0.send(result).await;
    }

    /// Starts a new live text.
    pub(crate) fn begin(&mut self) {
        self.0.retract_to(0);
    }

    /// Replaces the live text by a note and sends it as a delta.
    pub(crate) async fn note(&mut self, note: &str) {
        if note.trim().is_empty() || self.0.text() == note {
            return;
        }
        self.begin();
        self.append(note).await;
        self.0.flush().await;
    }

    /// Appends a piece to the live text.
    pub(crate) async fn append(&mut self, piece: &str) {
        self.0.append(piece).await;
    }

    /// Sends the complete message.
    pub(crate) async fn complete(&mut self, text: &str) {
        // The final text differs from the streamed one and replaces it.
        if !text.starts_with(self.0.text()) {
            self.begin();
        }
        self.0.hold(&text[self.0.text().len()..]);
        self.0.end(None).await;
        let completed = results::message_completed(Message::text("assistant", text), Vec::new());
        self.0.complete(completed).await;
    }
}

/// The object, or a preview of it beyond half of the limit.
pub(crate) fn within_limit(limit: LineLimit, object: JsonObject) -> JsonObject {
    let limit = limit.half();
    if limit.holds(&object) {
        object
    } else {
        limit.preview(&object)
    }
}
