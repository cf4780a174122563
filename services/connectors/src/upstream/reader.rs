//! Splits response bytes into events: server-sent events, lines, concatenated JSON, or one document. Chunk borders do
//! not
//! matter.

use protocol::sse::{Decoder, SseItem, SseLimits};
use serde_json::Value;

use crate::request::ResponseFraming;
use crate::upstream::failure::{ConnectorFailure, Mapped, TransportError};
use crate::upstream::json;

/// Maximum bytes of one event.
pub const EVENT_BYTES: usize = 1024 * 1024;
/// Maximum bytes of one response.
pub const RESPONSE_BYTES: usize = 32 * 1024 * 1024;
/// Maximum bytes of a document.
pub const DOCUMENT_BYTES: usize = 8 * 1024 * 1024;

/// One event of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamEvent {
    /// The name of a server-sent event.
    pub name: Option<String>,
    /// Its data, a line, a JSON text, or the document. Invalid UTF-8 is replaced.
    pub text: String,
    /// True if the text is the complete body.
    pub is_document: bool,
}

impl UpstreamEvent {
    /// The text as JSON. Lone surrogates in it are replaced.
    pub fn json(&self) -> Mapped<Value> {
        json::parse(&self.text).ok_or_else(|| ConnectorFailure::unreadable(&self.text))
    }

    /// The JSON after `data:` if the text has this prefix, else the text itself.
    pub fn data_line(&self) -> &str {
        let text = self.text.trim();
        text.strip_prefix("data:").unwrap_or(text).trim_start()
    }
}

/// Turns chunks of bytes into events, within the bounds of this module.
#[derive(Debug)]
pub struct UpstreamReader {
    framer: Framer,
    left: usize,
}

#[derive(Debug)]
enum Framer {
    /// A server-sent stream before its first byte.
    Unknown,
    Sse(Box<Decoder>),
    Lines(Vec<u8>),
    Json(JsonScan),
    Document(Vec<u8>),
}

impl UpstreamReader {
    /// A reader of one response.
    pub fn new(framing: ResponseFraming) -> Self {
        let framer = match framing {
            ResponseFraming::Sse => Framer::Unknown,
            ResponseFraming::Lines => Framer::Lines(Vec::new()),
            ResponseFraming::JsonStream => Framer::Json(JsonScan::default()),
            ResponseFraming::Document => Framer::Document(Vec::new()),
        };
        let left = RESPONSE_BYTES;
        Self { framer, left }
    }

    /// Reads one chunk and appends the events that it completes.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        events: &mut Vec<UpstreamEvent>,
    ) -> Result<(), TransportError> {
        let left = self.left.checked_sub(bytes.len());
        // Count before parsing, so that skipped bytes such as comments also spend the limit.
        self.left = left.ok_or(TransportError::TooLarge)?;
        if matches!(self.framer, Framer::Unknown) {
            bytes = bytes.trim_ascii_start();
            match bytes.first() {
                None => return Ok(()),
                // Platforms answer a stream request with a JSON or HTML error page under status 200.
                Some(b'{' | b'[' | b'<') => self.framer = Framer::Document(Vec::new()),
                Some(_) => self.framer = Framer::Sse(Box::new(decoder())),
            }
        }
        match &mut self.framer {
            Framer::Unknown => Ok(()),
            Framer::Sse(decoder) => {
                let mut items = Vec::new();
                let read = decoder.push(bytes, &mut items);
                events.extend(items.into_iter().filter_map(sse_event));
                read.map_err(|_| TransportError::TooLarge)
            }
            Framer::Lines(line) => push_lines(line, bytes, events),
            Framer::Json(scan) => scan.push(bytes, events),
            Framer::Document(body) => extend(body, bytes, DOCUMENT_BYTES),
        }
    }

    /// The end of the response: appends the events without an end mark of their own.
    pub fn finish(self, events: &mut Vec<UpstreamEvent>) -> Result<(), TransportError> {
        match self.framer {
            Framer::Unknown => {}
            Framer::Sse(mut decoder) => {
                let mut items = Vec::new();
                let read = decoder.finish(&mut items);
                events.extend(items.into_iter().filter_map(sse_event));
                read.map_err(|_| TransportError::TooLarge)?;
            }
            Framer::Lines(line) => events.extend(line_event(&line)),
            // An incomplete JSON text is an event as well: the machine reports it as unreadable.
            Framer::Json(scan) => events.extend(document(&scan.buffer)),
            Framer::Document(body) => events.extend(document(&body)),
        }
        Ok(())
    }
}

fn decoder() -> Decoder {
    // A line holds the field's name in addition to the data.
    let limits = SseLimits {
        line_bytes: EVENT_BYTES + 64,
        event_bytes: EVENT_BYTES,
    };
    Decoder::of_data(limits).splitting_objects()
}

fn sse_event(item: SseItem) -> Option<UpstreamEvent> {
    let SseItem::Event(event) = item else {
        return None;
    };
    Some(UpstreamEvent {
        name: event.event,
        text: String::from_utf8_lossy(&event.data).into_owned(),
        is_document: false,
    })
}

fn push_lines(
    line: &mut Vec<u8>,
    bytes: &[u8],
    events: &mut Vec<UpstreamEvent>,
) -> Result<(), TransportError> {
    for part in bytes.split_inclusive(|byte| *byte == b'\n') {
        extend(line, part, EVENT_BYTES)?;
        if part.ends_with(b"\n") {
            events.extend(line_event(line));
            line.clear();
        }
    }
    Ok(())
}

fn line_event(line: &[u8]) -> Option<UpstreamEvent> {
    let line = line.trim_ascii_end();
    (!line.is_empty()).then(|| UpstreamEvent {
        text: String::from_utf8_lossy(line).into_owned(),
        ..UpstreamEvent::default()
    })
}

fn document(body: &[u8]) -> Option<UpstreamEvent> {
    let body = body.trim_ascii();
    (!body.is_empty()).then(|| UpstreamEvent {
        text: String::from_utf8_lossy(body).into_owned(),
        is_document: true,
        ..UpstreamEvent::default()
    })
}

fn extend(buffer: &mut Vec<u8>, bytes: &[u8], limit: usize) -> Result<(), TransportError> {
    if buffer.len() + bytes.len() > limit {
        return Err(TransportError::TooLarge);
    }
    buffer.extend_from_slice(bytes);
    Ok(())
}

/// Finds the ends of concatenated JSON objects and arrays.
#[derive(Debug, Default)]
struct JsonScan {
    buffer: Vec<u8>,
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    /// True from the first byte that cannot begin an object or array.
    is_text: bool,
}

impl JsonScan {
    fn push(
        &mut self,
        bytes: &[u8],
        events: &mut Vec<UpstreamEvent>,
    ) -> Result<(), TransportError> {
        for &byte in bytes {
            // White space between two texts belongs to neither.
            if self.buffer.is_empty() && byte.is_ascii_whitespace() {
                continue;
            }
            if self.buffer.is_empty() && !matches!(byte, b'{' | b'[') {
                // Other text has no recognizable end, so the rest of the body becomes one document.
                self.is_text = true;
            }
            extend(&mut self.buffer, &[byte], EVENT_BYTES)?;
            if !self.is_text && self.ends_at(byte) {
                events.push(UpstreamEvent {
                    text: String::from_utf8_lossy(&self.buffer).into_owned(),
                    ..UpstreamEvent::default()
                });
                self.buffer.clear();
            }
        }
        Ok(())
    }

    fn ends_at(&mut self, byte: u8) -> bool {
        // Brackets within a string do not count, and an escaped quote does not end it.
        if self.is_in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.is_in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.is_in_string = true,
            b'{' | b'[' => self.depth += 1,
            // A surplus closing bracket must not underflow; the parser reports it.
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.depth == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(framing: ResponseFraming, body: &str, size: usize) -> Vec<String> {
        let (mut reader, mut events) = (UpstreamReader::new(framing), Vec::new());
        for chunk in body.as_bytes().chunks(size) {
            reader.push(chunk, &mut events).unwrap();
        }
        reader.finish(&mut events).unwrap();
        let mark = |event: UpstreamEvent| {
            let kind = if event.is_document { "doc " } else { "" };
            format!("{kind}{}", event.text)
        };
        events.into_iter().map(mark).collect()
    }

    #[test]
    fn frames_at_any_cut() {
        use ResponseFraming::{Document, JsonStream, Lines, Sse};
        for (framing, body, expected) in [
            (
                Sse,
                ": ping\n\ndata: a\n\nevent: ping\n\ndata: ü",
                vec!["a", "ü"],
            ),
            (
                Sse,
                "data: {\"a\":1}\ndata: {\"b\":2}\n",
                vec!["{\"a\":1}", "{\"b\":2}"],
            ),
            (Sse, "\n {\"error\": 1}\n", vec!["doc {\"error\": 1}"]),
            (Sse, "<html>", vec!["doc <html>"]),
            (Lines, "a\r\n\nb", vec!["a", "b"]),
            (
                JsonStream,
                "{\"a\":\"}\\\"{\"}\n[1] {}",
                vec!["{\"a\":\"}\\\"{\"}", "[1]", "{}"],
            ),
            (JsonStream, "plain {text}", vec!["doc plain {text}"]),
            (JsonStream, "{\"a\":1", vec!["doc {\"a\":1"]),
            (Document, "  ", vec![]),
            (Document, " {} \n", vec!["doc {}"]),
        ] {
            for size in 1..=body.len() {
                assert_eq!(texts(framing, body, size), expected, "{body:?} by {size}");
            }
        }
    }

    #[test]
    fn events_are_bounded() {
        let chunk = vec![b'a'; EVENT_BYTES / 2 + 100];
        for framing in [
            ResponseFraming::Sse,
            ResponseFraming::Lines,
            ResponseFraming::JsonStream,
        ] {
            let (mut reader, mut events) = (UpstreamReader::new(framing), Vec::new());
            let mut read = Ok(());
            for _ in 0..3 {
                read = read.and_then(|()| reader.push(&chunk, &mut events));
            }
            assert_eq!(read, Err(TransportError::TooLarge), "{framing:?}");
        }
    }
}
