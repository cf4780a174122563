//! Results in lines of JSON.

use serde::de::IgnoredAny;

use super::document::read_batch;
use super::{ReaderItem, TooLarge, push_heartbeat, without_mark};

/// Lines of a body, one result each.
pub(super) struct LineReader {
    line: Vec<u8>,
    /// Maximum bytes of a line.
    max_bytes: usize,
    max_results: u64,
    is_first: bool,
}

/// The first line is an incomplete JSON text, so the body is one document over several lines.
pub(super) struct PartialDocument {
    pub(super) line: Vec<u8>,
    /// Bytes of the chunk that were read.
    pub(super) read: usize,
}

impl LineReader {
    pub(super) fn new(max_bytes: usize, max_results: u64) -> Self {
        Self {
            line: Vec::new(),
            max_bytes,
            max_results,
            is_first: true,
        }
    }

    pub(super) fn push(
        &mut self,
        chunk: &[u8],
        items: &mut Vec<ReaderItem>,
    ) -> Result<Option<PartialDocument>, TooLarge> {
        let mut at = 0;
        while let Some(length) = chunk[at..].iter().position(|byte| *byte == b'\n') {
            self.extend(&chunk[at..at + length])?;
            at += length + 1;
            // Only the first line: a pretty-printed document is cut at its first line break.
            if self.is_first && is_cut(&self.line) {
                let line = std::mem::take(&mut self.line);
                return Ok(Some(PartialDocument { line, read: at }));
            }
            self.end(items);
        }
        self.extend(&chunk[at..])?;
        Ok(None)
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), TooLarge> {
        // Checked before the copy, so that a line without end costs no memory.
        if self.line.len() + part.len() > self.max_bytes {
            return Err(TooLarge::Line);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    /// Ends the line, at a line break or at the end of the body.
    pub(super) fn end(&mut self, items: &mut Vec<ReaderItem>) {
        let mut line = std::mem::take(&mut self.line);
        if line.iter().all(u8::is_ascii_whitespace) {
            push_heartbeat(items);
            return;
        }
        if std::mem::take(&mut self.is_first) {
            line = without_mark(line);
            if let Some(results) = read_batch(&line, self.max_results) {
                items.extend(results);
                return;
            }
        }
        items.push(ReaderItem::Result(line));
    }

    /// True when the last line is an incomplete JSON text.
    pub(super) fn is_cut(&self) -> bool {
        is_cut(&self.line)
    }
}

/// True for an incomplete JSON text.
fn is_cut(text: &[u8]) -> bool {
    let is_open =
        text.trim_ascii_start().starts_with(b"{") || text.trim_ascii_start().starts_with(b"[");
    is_open && serde_json::from_slice::<IgnoredAny>(text).is_err_and(|error| error.is_eof())
}
