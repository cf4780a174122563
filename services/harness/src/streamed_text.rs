//! Text that a harness sends twice: in deltas, and then completely.

use crate::speaker::{TextMark, TurnWriter};

/// Merges the deltas of a turn with its complete texts. The complete texts are authoritative: after a broken stream, a
/// harness repeats the request with or without streaming.
#[derive(Debug, Default)]
pub(crate) struct StreamedText {
    /// Start and text of deltas whose complete text has not arrived.
    pending: Option<(TextMark, String)>,
    /// Start of the open streamed message.
    open: Option<TextMark>,
    has_text: bool,
}

impl StreamedText {
    /// Begins a streamed message. Removes the text of an unfinished one.
    pub(crate) fn begin(&mut self, writer: &mut TurnWriter) {
        let pending = self.pending.take().map(|(start, _)| start);
        if let Some(start) = self.open.take().or(pending) {
            writer.retract_to(start);
        }
        self.open = Some(writer.mark());
    }

    /// Ends the streamed message. Its complete texts are final.
    pub(crate) fn end(&mut self) {
        self.open = None;
    }

    /// Ends the step. All text so far is final: the harness continues from it.
    pub(crate) fn keep(&mut self) {
        (self.open, self.pending) = (None, None);
    }

    /// Appends a delta, and remembers it until its complete text arrives.
    pub(crate) async fn add_delta(&mut self, text: &str, writer: &mut TurnWriter) {
        let start = writer.mark();
        let (_, pending) = self.pending.get_or_insert_with(|| (start, String::new()));
        pending.push_str(text);
        self.has_text |= !text.trim().is_empty();
        writer.append(text).await;
    }

    /// Appends the part of a complete text that no delta contained.
    pub(crate) async fn add_complete(&mut self, text: &str, writer: &mut TurnWriter) {
        if text.trim().is_empty() {
            return;
        }
        self.has_text = true;
        let Some((start, pending)) = self.pending.take() else {
            writer.new_paragraph();
            return writer.append(text).await;
        };
        if let Some(rest) = pending.strip_prefix(text) {
            // The rest belongs to the next text of the same message.
            self.pending = (!rest.trim().is_empty()).then(|| (start, rest.to_owned()));
        } else if let Some(rest) = text.strip_prefix(pending.as_str()) {
            writer.append(rest).await;
        } else if !pending.trim_end().ends_with(text.trim()) {
            // The deltas came from a broken stream: the complete text replaces them.
            writer.retract_to(start);
            writer.new_paragraph();
            writer.append(text).await;
        }
    }

    /// Appends the answer that the end of a turn repeats, if the turn has no text or ends with an unfinished one.
    pub(crate) async fn finish(&mut self, answer: &str, writer: &mut TurnWriter) {
        if !self.has_text || self.pending.is_some() {
            self.add_complete(answer, writer).await;
        }
    }
}
