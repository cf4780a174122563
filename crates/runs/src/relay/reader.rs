//! Three ways to frame results, one way to read them: bytes in, whole JSON documents out.
//!
//! A body that is framed in another way than its `Content-Type` says is known by its first byte and read as it is.

use domain::normalize::{ResultLimits, is_result, is_terminal_result};
use protocol::result::ResultType;
use protocol::sse::{Decoder, SseError, SseEvent, SseItem, SseLimits};

pub use deviation::Deviation;
use deviation::Deviations;
use lines::{Document, Lines};
use runner_client::ResultFormat;
use whole::Whole;

mod deviation;
mod lines;
mod whole;

/// What a reader found.
#[derive(Debug, PartialEq, Eq)]
pub enum Item {
    /// One JSON document, not judged yet.
    Result(Vec<u8>),
    /// A sign of life.
    Life,
}

/// What of an answer is larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TooLarge {
    Line,
    Event,
    /// One JSON document, which is read to its end before its first result is.
    Document,
    /// Bytes beside results: comments, empty lines, unknown fields, foreign events.
    Beside,
}

impl From<SseError> for TooLarge {
    fn from(error: SseError) -> Self {
        match error {
            SseError::LineTooLong => Self::Line,
            SseError::EventTooLarge => Self::Event,
        }
    }
}

/// The largest JSON document, unless one event may be larger. It is in memory as a whole for as long as it comes.
const DOCUMENT_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that are no result, for each byte of results that a run may send.
const BESIDE: u64 = 2;

/// Reads the answer of a runner within bounds.
pub struct ResultReader {
    declared: ResultFormat,
    framing: Framing,
    line_bytes: usize,
    limits: ResultLimits,
    /// Bytes that have come, and those of them that were results.
    read: u64,
    taken: u64,
    deviations: Deviations,
    fault: Option<&'static str>,
}

enum Framing {
    /// Nothing has come that says it.
    Unknown,
    Events {
        decoder: Decoder,
        found: Vec<SseItem>,
    },
    Lines(Lines),
    Whole(Whole),
}

impl ResultReader {
    pub fn new(declared: ResultFormat, line_bytes: usize, limits: ResultLimits) -> Self {
        Self {
            declared,
            framing: Framing::Unknown,
            line_bytes,
            limits,
            read: 0,
            taken: 0,
            deviations: Deviations::default(),
            fault: None,
        }
    }

    /// Reads a chunk. Events that were whole before a limit was passed stand in `items`.
    pub fn push(&mut self, chunk: &[u8], items: &mut Vec<Item>) -> Result<(), TooLarge> {
        let before = items.len();
        self.read += chunk.len() as u64;
        let outcome = self.read_on(chunk, items);
        for item in &items[before..] {
            if let Item::Result(raw) = item {
                self.taken += raw.len() as u64;
            }
        }
        outcome?;
        let beside = self.read.saturating_sub(self.taken);
        let most = (self.limits.run_bytes as u64).saturating_mul(BESIDE);
        // A document is bounded by itself.
        if beside > most && !matches!(self.framing, Framing::Whole(_)) {
            return Err(TooLarge::Beside);
        }
        Ok(())
    }

    fn read_on(&mut self, mut chunk: &[u8], items: &mut Vec<Item>) -> Result<(), TooLarge> {
        if matches!(self.framing, Framing::Unknown) {
            // A byte order mark, which may be cut, and line ends mean nothing in any framing.
            let is_nothing = |byte: &&u8| matches!(byte, b'\r' | b'\n' | 0xEF | 0xBB | 0xBF);
            let nothing = chunk.iter().take_while(is_nothing).count();
            chunk = &chunk[nothing..];
            let Some(first) = chunk.first() else {
                return Ok(());
            };
            self.begin(*first);
        }
        match &mut self.framing {
            Framing::Unknown => Ok(()),
            Framing::Events { decoder, found } => {
                let outcome = decoder.push(chunk, found);
                if decoder.has_split() {
                    self.deviations.add(Deviation::SingleLineBreaks);
                }
                for item in found.drain(..) {
                    take_event(item, items, &mut self.deviations);
                }
                outcome.map_err(TooLarge::from)
            }
            Framing::Lines(lines) => {
                let Some(Document { line, read }) = lines.push(chunk, items)? else {
                    return Ok(());
                };
                self.deviations.add(Deviation::OtherFraming);
                let mut whole = self.whole();
                whole.push(&line)?;
                whole.push(b"\n")?;
                whole.push(&chunk[read..])?;
                self.framing = Framing::Whole(whole);
                Ok(())
            }
            Framing::Whole(whole) => whole.push(chunk),
        }
    }

    /// Chooses the framing by the first byte: no event begins with a bracket, and no JSON object with a letter or a colon.
    fn begin(&mut self, first: u8) {
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
            ResultFormat::EventStream => Framing::Events {
                decoder: Decoder::of_data(SseLimits {
                    line_bytes: self.line_bytes,
                    event_bytes: self.limits.event_bytes,
                })
                .splitting_objects(),
                found: Vec::new(),
            },
            ResultFormat::JsonLines => {
                Framing::Lines(Lines::new(self.line_bytes, self.limits.run_events))
            }
            ResultFormat::Json => Framing::Whole(self.whole()),
        };
    }

    fn whole(&self) -> Whole {
        let limits = self.limits;
        Whole {
            body: Vec::new(),
            most: DOCUMENT_BYTES.max(limits.event_bytes).min(limits.run_bytes),
            most_results: limits.run_events,
        }
    }

    /// The body is over: what counts without a closing mark counts now.
    pub fn finish(&mut self, items: &mut Vec<Item>) {
        match &mut self.framing {
            Framing::Unknown => self.fault = Some("its body is empty"),
            Framing::Events { decoder, found } => {
                let (read, taken) = (self.read, self.taken);
                // Past a bound it is no whole event.
                let _ = decoder.finish(found);
                let mut is_open = false;
                for item in found.drain(..) {
                    let SseItem::Event(SseEvent { data, .. }) = item else {
                        continue;
                    };
                    if is_terminal_result(&data) {
                        items.push(Item::Result(data));
                        self.deviations.add(Deviation::UnfinishedEvent);
                    } else {
                        is_open = true;
                    }
                }
                if is_open {
                    self.fault = Some("its last event has no empty line behind it");
                } else if taken == 0 && read > 0 {
                    self.fault = Some(
                        "its body holds no event: each is `data:` and JSON on a line, then an empty line",
                    );
                }
            }
            Framing::Lines(lines) => {
                if lines.is_cut() {
                    self.fault = Some("its last line is cut");
                }
                lines.end(items);
            }
            Framing::Whole(whole) => {
                let before = items.len();
                for deviation in whole.finish(items) {
                    self.deviations.add(deviation);
                }
                let mut found = items[before..].iter();
                let is_taken = |item: &Item| matches!(item, Item::Result(raw) if is_result(raw));
                if !found.any(is_taken) {
                    self.fault = Some("its body is no {\"results\": […]}, and no result a line");
                }
            }
        }
    }

    /// The same for a body that has no end: it counts only where all is there.
    pub fn finish_broken(&mut self, items: &mut Vec<Item>) {
        let mut found = Vec::new();
        self.finish(&mut found);
        let is_end = |item: &Item| matches!(item, Item::Result(raw) if is_terminal_result(raw));
        if found.last().is_some_and(is_end) {
            items.extend(found);
        }
    }

    /// Accepted deviations that were not reported yet.
    pub fn take_deviations(&mut self) -> Vec<Deviation> {
        self.deviations.take()
    }

    /// How the framing of a finished body explains that it has no terminal.
    pub fn fault(&self) -> Option<&'static str> {
        self.fault
    }
}

fn take_event(item: SseItem, items: &mut Vec<Item>, deviations: &mut Deviations) {
    match item {
        SseItem::Comment => push_life(items),
        SseItem::Event(event) if event.data.is_empty() => {}
        SseItem::Event(SseEvent { event, data, .. }) => {
            if event.as_deref().is_some_and(is_foreign) && !is_result(&data) {
                deviations.add(Deviation::ForeignEvent);
                push_life(items);
            } else {
                items.push(Item::Result(data));
            }
        }
    }
}

/// True for a name that says neither a result type nor what an event without a name is called.
fn is_foreign(name: &str) -> bool {
    !name.is_empty() && name != "message" && ResultType::parse(name).is_none()
}

/// One sign of life is as good as many.
fn push_life(items: &mut Vec<Item>) {
    if items.last() != Some(&Item::Life) {
        items.push(Item::Life);
    }
}

/// What some writers put before a text, to say how it is encoded.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

fn without_mark(mut text: Vec<u8>) -> Vec<u8> {
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len());
    }
    text
}

#[cfg(test)]
mod tests;
