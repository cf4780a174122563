//! The response of an n8n workflow: chunks of its nodes, one JSON document, or plain text.

use serde_json::{Value, json};

use crate::machine::OutputQueue;
use crate::turn::ConnectorTurn;
use crate::upstream::answer::AnswerText;
use crate::upstream::failure::{ConnectorFailure, FailureKind, TransportError, message_of};
use crate::upstream::json::{self, filled};
use crate::upstream::reader::{DOCUMENT_BYTES, UpstreamEvent};

/// The response of a webhook that does not wait for its workflow.
const STARTED: &str = "Workflow was started";

/// State of the reply so far.
pub(super) struct N8nReply {
    answer: AnswerText,
    output_key: String,
    streams: bool,
    /// Number of blocks without an end. Several nodes stream in one response.
    open_blocks: usize,
    has_items: bool,
    /// Node, run and item of the last text.
    source: Value,
    /// The text of that node while it may be a document, such as the output of a node that responds to the webhook.
    held: String,
    /// All text outside of chunks.
    rest: String,
    /// The body ended within an object.
    is_cut: bool,
}

impl N8nReply {
    pub(super) fn new(turn: &ConnectorTurn, output_key: &str) -> Self {
        Self {
            answer: AnswerText::new(turn),
            output_key: output_key.to_owned(),
            streams: turn.streams,
            open_blocks: 0,
            has_items: false,
            source: Value::Null,
            held: String::new(),
            rest: String::new(),
            is_cut: false,
        }
    }

    pub(super) fn event(
        &mut self,
        event: &UpstreamEvent,
        out: &mut OutputQueue,
    ) -> Result<(), ConnectorFailure> {
        let payload = json::parse(&event.text).unwrap_or_default();
        // Chunks without content may pass: only stored text counts.
        if !payload["content"].is_null() && self.held.len() + event.text.len() > DOCUMENT_BYTES {
            return Err(TransportError::TooLarge.into());
        }
        match payload["type"].as_str() {
            Some("begin") => self.open_blocks += 1,
            Some("item") => self.item(&payload, out),
            Some("end") => self.open_blocks = self.open_blocks.saturating_sub(1),
            Some("error") => {
                let message = filled(&payload["content"]).or_else(|| message_of(&payload));
                return Err(ConnectorFailure::reported(
                    None,
                    None,
                    message.unwrap_or_default(),
                ));
            }
            _ if self.rest.len() + event.text.len() > DOCUMENT_BYTES => {
                return Err(TransportError::TooLarge.into());
            }
            _ => {
                self.is_cut |= event.is_document && event.text.starts_with(['{', '[']);
                self.rest.push_str(&event.text);
            }
        }
        Ok(())
    }

    /// Reads a piece of a node's text. The text of each run of a node is a paragraph.
    fn item(&mut self, chunk: &Value, out: &mut OutputQueue) {
        let piece = json::text_of(&chunk["content"]).unwrap_or_default();
        if piece.is_empty() {
            return;
        }
        let of = |key: &str| chunk["metadata"][key].clone();
        let source = json!([of("nodeId"), of("runIndex"), of("itemIndex")]);
        let is_first = !self.has_items || self.source != source;
        if is_first {
            self.end_document(out);
        }
        self.has_items = true;
        self.source = source;
        // A document can only be read at its end, so hold its pieces.
        if !self.held.is_empty() || is_first && piece.trim_start().starts_with(['{', '[']) {
            self.held.push_str(&piece);
            return;
        }
        if is_first {
            self.begin_paragraph(out);
        }
        self.answer.append(&piece, out);
    }

    fn begin_paragraph(&mut self, out: &mut OutputQueue) {
        if self.answer.has_begun() {
            self.answer.append("\n\n", out);
        }
    }

    /// Emits the text of a node that may be a document. Text that another node streamed is not repeated.
    fn end_document(&mut self, out: &mut OutputQueue) {
        let held = std::mem::take(&mut self.held);
        let text = self.text_in(&held);
        if !text.trim().is_empty() && !self.answer.has(&text) {
            self.begin_paragraph(out);
            self.answer.append(&text, out);
        }
    }

    /// Completes the run at the end of the body.
    pub(super) fn complete(&mut self, out: &mut OutputQueue) -> Result<(), ConnectorFailure> {
        if self.open_blocks > 0 || self.is_cut {
            return Err(ConnectorFailure::ended_early());
        }
        self.end_document(out);
        if !self.has_items {
            let text = self.document()?;
            if self.streams && !text.trim().is_empty() {
                out.log("info", "n8n answered in one document: for streaming, set the trigger's response mode to streaming, and turn streaming on in the agent's node");
            }
            self.answer.append(&text, out);
        }
        if !self.answer.complete(out) {
            return Err(ConnectorFailure::empty());
        }
        out.finish("stop", None);
        Ok(())
    }

    /// The text of a body without chunks: the configured member, or the complete body.
    fn document(&mut self) -> Result<String, ConnectorFailure> {
        let body = std::mem::take(&mut self.rest);
        let document = json::parse(&body).unwrap_or_default();
        if document["message"] == STARTED {
            let message = "the workflow does not answer: let its webhook respond when the last node finishes, or by a response node";
            return Err(ConnectorFailure::new(FailureKind::EmptyResponse, message));
        }
        Ok(self.text_in(&body))
    }

    /// The configured member of a document, or the complete text.
    fn text_in(&self, text: &str) -> String {
        let document = json::parse(text).unwrap_or_default();
        let item = match &document {
            Value::Array(items) if items.len() == 1 => &items[0],
            document => document,
        };
        match (item.get(&self.output_key), &document) {
            (Some(value), _) => json::text_of(value).unwrap_or_default(),
            (None, Value::String(text)) => text.clone(),
            (None, _) => text.to_owned(),
        }
    }
}
