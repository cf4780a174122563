//! Reader of results in three framings: bytes in, complete JSON documents out.
//!
//! The first byte determines the framing of a body that differs from its `Content-Type`.

use domain::normalize::{ResultLimits, is_result, is_terminal_result};
use protocol::result::ResultType;
use protocol::sse::{Decoder, SseError, SseEvent, SseItem, SseLimits};

pub use deviation::Deviation;
use deviation::Deviations;
use document::DocumentReader;
use keep_alive::is_keep_alive;
use lines::{LineReader, PartialDocument};
use runner_client::ResultFormat;

mod deviation;
mod document;
mod keep_alive;
mod lines;

/// An item of a runner's answer.
#[derive(Debug, PartialEq, Eq)]
pub enum ReaderItem {
    /// One JSON document, not validated yet.
    Result(Vec<u8>),
    /// A sign of life without a result: a comment, an empty line or a keep-alive.
    Heartbeat,
}

/// Limit that an answer exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    Line,
    Event,
    /// One JSON document, which is read to its end before its first result.
    Document,
    /// Bytes that are no result: comments, empty lines, unknown fields, foreign events.
    Other,
}

impl From<SseError> for TooLarge {
    fn from(error: SseError) -> Self {
        match error {
            SseError::LineTooLong => Self::Line,
            SseError::EventTooLarge => Self::Event,
        }
    }
}

/// Maximum bytes of a JSON document, unless one event may be larger. The full document is in memory.
const DOCUMENT_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that are no result, as a multiple of the bytes of results that a run may send.
const OTHER_BYTES_RATIO: u64 = 2;

/// Reads the answer of a runner within limits.
pub struct ResultReader {
    declared: ResultFormat,
    framing: ResultFraming,
    line_bytes: usize,
    limits: ResultLimits,
    /// Received bytes, and those of them that were results.
    read: u64,
    taken: u64,
    deviations: Deviations,
    fault: Option<&'static str>,
}

enum ResultFraming {
    /// No byte has been received that determines the framing.
    Unknown,
    Events {
        decoder: Decoder,
        found: Vec<SseItem>,
    },
    LineReader(LineReader),
    DocumentReader(DocumentReader),
}

impl ResultReader {
    pub fn new(declared: ResultFormat, line_bytes: usize, limits: ResultLimits) -> Self {
        Self {
            declared,
            framing: ResultFraming::Unknown,
            line_bytes,
            limits,
            read: 0,
            taken: 0,
            deviations: Deviations::default(),
            fault: None,
        }
    }

    /// Reads a chunk. On an error, `items` has the complete events before the limit.
    pub fn push(&mut self, chunk: &[u8], items: &mut Vec<ReaderItem>) -> Result<(), TooLarge> {
        let before = items.len();
        self.read += chunk.len() as u64;
        let outcome = self.read_on(chunk, items);
        for item in &items[before..] {
            if let ReaderItem::Result(raw) = item {
                self.taken += raw.len() as u64;
            }
        }
        outcome?;
        let other = self.read.saturating_sub(self.taken);
        let max_other = (self.limits.run_bytes as u64).saturating_mul(OTHER_BYTES_RATIO);
        // A document has its own limit.
        if other > max_other && !matches!(self.framing, ResultFraming::DocumentReader(_)) {
            return Err(TooLarge::Other);
        }
        Ok(())
    }

    fn read_on(&mut self, mut chunk: &[u8], items: &mut Vec<ReaderItem>) -> Result<(), TooLarge> {
        if matches!(self.framing, ResultFraming::Unknown) {
            // Line ends and the bytes of a byte order mark, which may be split, have no meaning in any framing.
            let is_nothing = |byte: &&u8| matches!(byte, b'\r' | b'\n' | 0xEF | 0xBB | 0xBF);
            let nothing = chunk.iter().take_while(is_nothing).count();
            chunk = &chunk[nothing..];
            let Some(first) = chunk.first() else {
                return Ok(());
            };
            self.begin(*first);
        }
        match &mut self.framing {
            ResultFraming::Unknown => Ok(()),
            ResultFraming::Events { decoder, found } => {
                let outcome = decoder.push(chunk, found);
                if decoder.has_split() {
                    self.deviations.add(Deviation::SingleLineBreaks);
                }
                for item in found.drain(..) {
                    take_event(item, items, &mut self.deviations);
                }
                outcome.map_err(TooLarge::from)
            }
            ResultFraming::LineReader(lines) => {
                let before = items.len();
                let outcome = lines.push(chunk, items);
                take_keep_alives(&mut items[before..], &mut self.deviations);
                let Some(PartialDocument { line, read }) = outcome? else {
                    return Ok(());
                };
                self.deviations.add(Deviation::OtherFraming);
                let mut document = self.document_reader();
                document.push(&line)?;
                document.push(b"\n")?;
                document.push(&chunk[read..])?;
                self.framing = ResultFraming::DocumentReader(document);
                Ok(())
            }
            ResultFraming::DocumentReader(document) => document.push(chunk),
        }
    }

    /// Chooses the framing by the first byte.
    fn begin(&mut self, first: u8) {
        // No event begins with a bracket, and no JSON object with a letter or a colon.
        let is_event = matches!(first, b':' | b'd' | b'e' | b'i' | b'r');
        let is_json = matches!(first, b'{' | b'[');
        let found = match self.declared {
            ResultFormat::EventStream if is_json => ResultFormat::JsonLines,
            ResultFormat::JsonLines | ResultFormat::Json if is_event => ResultFormat::EventStream,
            declared => declared,
        };
        if found != self.declared {
            self.deviations.add(Deviation::OtherFraming);
        }
        self.framing = match found {
            ResultFormat::EventStream => ResultFraming::Events {
                decoder: Decoder::of_data(SseLimits {
                    line_bytes: self.line_bytes,
                    event_bytes: self.limits.event_bytes,
                })
                .splitting_objects(),
                found: Vec::new(),
            },
            ResultFormat::JsonLines => {
                ResultFraming::LineReader(LineReader::new(self.line_bytes, self.limits.run_events))
            }
            ResultFormat::Json => ResultFraming::DocumentReader(self.document_reader()),
        };
    }

    fn document_reader(&self) -> DocumentReader {
        let limits = self.limits;
        DocumentReader {
            body: Vec::new(),
            max_bytes: DOCUMENT_BYTES.max(limits.event_bytes).min(limits.run_bytes),
            max_results: limits.run_events,
        }
    }

    /// Ends the body. A terminal counts without its closing mark.
    pub fn finish(&mut self, items: &mut Vec<ReaderItem>) {
        match &mut self.framing {
            ResultFraming::Unknown => self.fault = Some("its body is empty"),
            ResultFraming::Events { decoder, found } => {
                let (read, taken) = (self.read, self.taken);
                // An event beyond a limit is incomplete.
                let _ = decoder.finish(found);
                let mut is_open = false;
                for item in found.drain(..) {
                    let SseItem::Event(SseEvent { data, .. }) = item else {
                        continue;
                    };
                    // A terminal is complete JSON, so its run must not fail for a missing empty line.
                    if is_terminal_result(&data) {
                        items.push(ReaderItem::Result(data));
                        self.deviations.add(Deviation::UnfinishedEvent);
                    } else {
                        is_open = true;
                    }
                }
                if is_open {
                    self.fault = Some("its last event has no empty line after it");
                } else if taken == 0 && read > 0 {
                    self.fault = Some(
                        "its body holds no event: each is `data:` and JSON on a line, then an empty line",
                    );
                }
            }
            ResultFraming::LineReader(lines) => {
                if lines.is_cut() {
                    self.fault = Some("its last line is cut");
                }
                let before = items.len();
                lines.end(items);
                take_keep_alives(&mut items[before..], &mut self.deviations);
            }
            ResultFraming::DocumentReader(document) => {
                let before = items.len();
                for deviation in document.finish(items) {
                    self.deviations.add(deviation);
                }
                let mut found = items[before..].iter();
                let is_taken =
                    |item: &ReaderItem| matches!(item, ReaderItem::Result(raw) if is_result(raw));
                if !found.any(is_taken) {
                    self.fault = Some("its body is no {\"results\": […]}, and no result a line");
                }
            }
        }
    }

    /// The same for a broken body: it counts only if the terminal is complete.
    pub fn finish_broken(&mut self, items: &mut Vec<ReaderItem>) {
        let mut found = Vec::new();
        self.finish(&mut found);
        let is_end =
            |item: &ReaderItem| matches!(item, ReaderItem::Result(raw) if is_terminal_result(raw));
        // Without the terminal, the last document may be cut within a value.
        if found.last().is_some_and(is_end) {
            items.extend(found);
        }
    }

    /// Accepted deviations that were not reported yet.
    pub fn take_deviations(&mut self) -> Vec<Deviation> {
        self.deviations.take()
    }

    /// Fault of the framing that explains a missing terminal.
    pub fn fault(&self) -> Option<&'static str> {
        self.fault
    }
}

fn take_event(item: SseItem, items: &mut Vec<ReaderItem>, deviations: &mut Deviations) {
    match item {
        SseItem::Comment => push_heartbeat(items),
        SseItem::Event(event) if event.data.is_empty() => {}
        SseItem::Event(SseEvent { event, data, .. }) => {
            let deviation = match event.as_deref() {
                None | Some("" | "message") => is_keep_alive(&data).then_some(Deviation::KeepAlive),
                Some(name) => {
                    let is_foreign = ResultType::parse(name).is_none() && !is_result(&data);
                    is_foreign.then_some(Deviation::ForeignEvent)
                }
            };
            match deviation {
                Some(deviation) => {
                    deviations.add(deviation);
                    push_heartbeat(items);
                }
                None => items.push(ReaderItem::Result(data)),
            }
        }
    }
}

/// Turns keep-alives among lines into heartbeats.
fn take_keep_alives(items: &mut [ReaderItem], deviations: &mut Deviations) {
    for item in items {
        if matches!(item, ReaderItem::Result(line) if is_keep_alive(line)) {
            deviations.add(Deviation::KeepAlive);
            *item = ReaderItem::Heartbeat;
        }
    }
}

/// Consecutive heartbeats are merged.
fn push_heartbeat(items: &mut Vec<ReaderItem>) {
    if items.last() != Some(&ReaderItem::Heartbeat) {
        items.push(ReaderItem::Heartbeat);
    }
}

/// Optional mark at the start of a text.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

fn without_mark(mut text: Vec<u8>) -> Vec<u8> {
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    text
}

#[cfg(test)]
mod tests;
