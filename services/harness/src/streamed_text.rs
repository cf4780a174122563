//! Text that a harness sends in deltas first and whole afterwards.

use crate::speaker::{TextMark, TurnWriter};

/// Compares the deltas of a turn with its whole texts, which count: a stream can break off, and a harness then asks again
/// with or without streaming.
#[derive(Debug, Default)]
pub(crate) struct StreamedText {
    /// Deltas without their whole text, and where they begin.
    pending: Option<(TextMark, String)>,
    /// Start of the streamed message that has not ended.
    open: Option<TextMark>,
    has_text: bool,
}

impl StreamedText {
    /// Begins a streamed message. The text of an unfinished one is removed.
    pub(crate) fn begin(&mut self, writer: &mut TurnWriter) {
        let pending = self.pending.take().map(|(start, _)| start);
        if let Some(start) = self.open.take().or(pending) {
            writer.retract_to(start);
        }
        self.open = Some(writer.mark());
    }

    /// Ends the streamed message: its whole texts stay.
    pub(crate) fn end(&mut self) {
        self.open = None;
    }

    /// Ends the step: all text so far stays, for the harness goes on from it.
    pub(crate) fn keep(&mut self) {
        (self.open, self.pending) = (None, None);
    }

    /// Says a delta.
    pub(crate) async fn add_delta(&mut self, text: &str, writer: &mut TurnWriter) {
        let start = writer.mark();
        let (_, pending) = self.pending.get_or_insert_with(|| (start, String::new()));
        pending.push_str(text);
        self.has_text |= !text.trim().is_empty();
        writer.append(text).await;
    }

    /// Says the part of a whole text that no delta had.
    pub(crate) async fn add_whole(&mut self, text: &str, writer: &mut TurnWriter) {
        if text.trim().is_empty() {
            return;
        }
        self.has_text = true;
        let Some((start, pending)) = self.pending.take() else {
            writer.new_paragraph();
            return writer.append(text).await;
        };
        if let Some(rest) = pending.strip_prefix(text) {
            // Deltas of the next text of the same message.
            self.pending = (!rest.trim().is_empty()).then(|| (start, rest.to_owned()));
        } else if let Some(rest) = text.strip_prefix(pending.as_str()) {
            writer.append(rest).await;
        } else if !pending.trim_end().ends_with(text.trim()) {
            writer.retract_to(start);
            writer.new_paragraph();
            writer.append(text).await;
        }
    }

    /// Says the answer that the end of a turn repeats, if the turn has no other text or ends with an unfinished one.
    pub(crate) async fn finish(&mut self, answer: &str, writer: &mut TurnWriter) {
        if !self.has_text || self.pending.is_some() {
            self.add_whole(answer, writer).await;
        }
    }
}
