//! The response of an n8n workflow: chunks of its nodes, one JSON document, or plain text.

use serde_json::{Value, json};

use crate::run::ConnectorRun;
use crate::upstream::answer::PlatformAnswer;
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped, TransportError, message_of};
use crate::upstream::json::{self, filled};
use crate::upstream::reader::{DOCUMENT_BYTES, UpstreamEvent};

/// The response of a webhook that does not wait for its workflow.
const STARTED: &str = "Workflow was started";

/// State of the reply so far.
#[derive(Default)]
pub(super) struct N8nReply {
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
    pub(super) fn event(
        &mut self,
        event: &UpstreamEvent,
        output_key: &str,
        answer: &mut PlatformAnswer,
    ) -> Mapped {
        let payload = json::parse(&event.text).unwrap_or_default();
        // Chunks without content may pass: only stored text counts.
        if !payload["content"].is_null() && self.held.len() + event.text.len() > DOCUMENT_BYTES {
            return Err(TransportError::TooLarge.into());
        }
        match payload["type"].as_str() {
            Some("begin") => self.open_blocks += 1,
            Some("item") => self.item(&payload, output_key, answer),
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
    fn item(&mut self, chunk: &Value, output_key: &str, answer: &mut PlatformAnswer) {
        let piece = json::text_of(&chunk["content"]).unwrap_or_default();
        if piece.is_empty() {
            return;
        }
        let of = |key: &str| chunk["metadata"][key].clone();
        let source = json!([of("nodeId"), of("runIndex"), of("itemIndex")]);
        let is_first = !self.has_items || self.source != source;
        if is_first {
            self.end_document(output_key, answer);
        }
        self.has_items = true;
        self.source = source;
        // A document can only be read at its end, so hold its pieces.
        if !self.held.is_empty() || is_first && piece.trim_start().starts_with(['{', '[']) {
            self.held.push_str(&piece);
            return;
        }
        if is_first {
            begin_paragraph(answer);
        }
        answer.append(&piece);
    }

    /// Emits the text of a node that may be a document. Text that another node streamed is not repeated.
    fn end_document(&mut self, output_key: &str, answer: &mut PlatformAnswer) {
        let held = std::mem::take(&mut self.held);
        let text = text_in(&held, output_key);
        if !text.trim().is_empty() && !answer.has(&text) {
            begin_paragraph(answer);
            answer.append(&text);
        }
    }

    /// Adds the text that only the end of the body completes.
    pub(super) fn end(&mut self, output_key: &str, run: &mut ConnectorRun) -> Mapped {
        if self.open_blocks > 0 || self.is_cut {
            return Err(ConnectorFailure::ended_early());
        }
        let answer = &mut run.answer;
        self.end_document(output_key, answer);
        if !self.has_items {
            let text = self.document(output_key)?;
            if run.turn.streams && !text.trim().is_empty() {
                answer.out.log("info", "n8n answered in one document: for streaming, set the trigger's response mode to streaming, and turn streaming on in the agent's node");
            }
            answer.append(&text);
        }
        Ok(())
    }

    /// The text of a body without chunks: the configured member, or the complete body.
    fn document(&mut self, output_key: &str) -> Mapped<String> {
        let body = std::mem::take(&mut self.rest);
        let document = json::parse(&body).unwrap_or_default();
        if document["message"] == STARTED {
            let message = "the workflow does not answer: let its webhook respond when the last node finishes, or by a response node";
            return Err(ConnectorFailure::new(FailureKind::EmptyResponse, message));
        }
        Ok(text_in(&body, output_key))
    }
}

/// The configured member of a document, or the complete text.
fn text_in(text: &str, output_key: &str) -> String {
    let document = json::parse(text).unwrap_or_default();
    let item = match &document {
        Value::Array(items) if items.len() == 1 => &items[0],
        document => document,
    };
    match (item.get(output_key), &document) {
        (Some(value), _) => json::text_of(value).unwrap_or_default(),
        (None, Value::String(text)) => text.clone(),
        (None, _) => text.to_owned(),
    }
}

fn begin_paragraph(answer: &mut PlatformAnswer) {
    if answer.has_begun() {
        answer.append("\n\n");
    }
}
