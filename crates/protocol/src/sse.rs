//! Bounded decoder of server-sent events: bytes in, complete events out.
//!
//! The decoder drops a leading byte order mark. CR, LF and CRLF end a line at any chunk boundary. An event is
//! complete at its empty line. Time is linear in the input, and memory is bounded by the limits. Event data is
//! bytes; the decoder does not validate text.

use memchr::memchr2;

/// Memory limits of a [`Decoder`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SseLimits {
    /// Maximum bytes of one line, without its end.
    pub line_bytes: usize,
    /// Maximum bytes of the data of one event.
    pub event_bytes: usize,
}

/// One event. Comments and events without data produce none.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct SseEvent {
    pub event: Option<String>,
    pub id: Option<String>,
    /// The data lines, joined by LF.
    pub data: Vec<u8>,
}

/// Output of the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SseItem {
    Event(SseEvent),
    /// A comment line, used as a keep-alive.
    Comment,
}

/// The stream exceeds a limit and cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SseError {
    LineTooLong,
    EventTooLarge,
}

impl std::fmt::Display for SseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::LineTooLong => "line is longer than the limit",
            Self::EventTooLarge => "event is larger than the limit",
        })
    }
}

impl std::error::Error for SseError {}

const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Fields of an event that the decoder stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StoredFields {
    All,
    Data,
}

/// Data of the last event of a model stream.
const END_MARK: &[u8] = b"[DONE]";

/// Handling of two objects in the data of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ObjectBoundary {
    InOneEvent,
    Split,
}

/// Decodes chunks of bytes into events.
#[derive(Debug)]
pub struct Decoder {
    limits: SseLimits,
    keep: StoredFields,
    objects: ObjectBoundary,
    line: Vec<u8>,
    at_start: bool,
    after_cr: bool,
    event: SseEvent,
    has_data: bool,
    /// Last byte of the data that is not white space. Cached, because a search would scan the data for each
    /// line.
    last_byte: Option<u8>,
    last_id: Option<String>,
    /// Number of events that ended because another began.
    split: u64,
}

impl Decoder {
    pub fn new(limits: SseLimits) -> Self {
        Self {
            limits,
            keep: StoredFields::All,
            objects: ObjectBoundary::InOneEvent,
            line: Vec::new(),
            at_start: true,
            after_cr: false,
            event: SseEvent::default(),
            has_data: false,
            last_byte: None,
            last_id: None,
            split: 0,
        }
    }

    /// Creates a decoder that omits event ids, which saves one allocation per event.
    pub fn of_data(limits: SseLimits) -> Self {
        // Ids only serve resumption, which model streams do not have.
        Self {
            keep: StoredFields::Data,
            ..Self::new(limits)
        }
    }

    /// Splits JSON objects that follow each other in one event, for peers without blank lines. The end mark
    /// `[DONE]` is split off, too. The split is safe: no JSON document has a line break between `}` and `{`.
    #[must_use]
    pub fn splitting_objects(mut self) -> Self {
        self.objects = ObjectBoundary::Split;
        self
    }

    /// Ends the stream and appends a last event without its blank line.
    pub fn finish(&mut self, items: &mut Vec<SseItem>) -> Result<(), SseError> {
        // The last line may have no line end, and the last event no blank line: a peer that closes the connection after
        // its last byte still gets it delivered.
        let line = std::mem::take(&mut self.line);
        self.end_line(&line, items)?;
        // An empty line completes the event.
        self.end_line(b"", items)
    }

    /// Reads one chunk and appends completed items to `items`.
    pub fn push(&mut self, mut chunk: &[u8], items: &mut Vec<SseItem>) -> Result<(), SseError> {
        while !chunk.is_empty() {
            // CRLF may be split between two chunks.
            if std::mem::take(&mut self.after_cr) && chunk[0] == b'\n' {
                chunk = &chunk[1..];
                continue;
            }
            let Some(end) = memchr2(b'\n', b'\r', chunk) else {
                // The rest of the line comes with a later chunk.
                return self.extend_line(chunk);
            };
            self.after_cr = chunk[end] == b'\r';
            // Fast path without a copy: the line is complete in this chunk. The first line is excluded, since it may
            // start with a byte order mark.
            if self.line.is_empty() && !self.at_start {
                self.check_length(end)?;
                self.end_line(&chunk[..end], items)?;
            } else {
                self.extend_line(&chunk[..end])?;
                let line = std::mem::take(&mut self.line);
                self.end_line(&line, items)?;
                // Returned for its capacity: the next partial line needs no allocation.
                self.line = line;
                self.line.clear();
            }
            chunk = &chunk[end + 1..];
        }
        Ok(())
    }

    /// Returns the last id of the stream, also from an event without data. Readers resume from it.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Returns true if an event ended without its blank line because another began.
    pub fn has_split(&self) -> bool {
        self.split > 0
    }

    fn extend_line(&mut self, part: &[u8]) -> Result<(), SseError> {
        // Checked before the copy, so that a line never exceeds its limit in memory.
        self.check_length(self.line.len() + part.len())?;
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn check_length(&self, length: usize) -> Result<(), SseError> {
        if length > self.limits.line_bytes {
            Err(SseError::LineTooLong)
        } else {
            Ok(())
        }
    }

    fn end_line(&mut self, line: &[u8], items: &mut Vec<SseItem>) -> Result<(), SseError> {
        // Only the first line of the stream may have the mark.
        let line = if std::mem::take(&mut self.at_start) {
            line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            // Both states belong to the data of one event.
            let event = std::mem::take(&mut self.event);
            self.last_byte = None;
            // The specification sets the last id also for events without data.
            if let Some(id) = &event.id {
                self.last_id = Some(id.clone());
            }
            // Events without data are dropped, as the specification requires.
            if std::mem::take(&mut self.has_data) {
                items.push(SseItem::Event(event));
            }
            return Ok(());
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            // A line that begins with a colon is a comment.
            Some(0) => {
                items.push(SseItem::Comment);
                return Ok(());
            }
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            // A line without a colon is a field without a value.
            None => (line, &[][..]),
        };
        // The specification removes one space only; further spaces are data.
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if self.objects == ObjectBoundary::Split
            && self.has_data
            && self.is_complete()
            && begins_event(name, value)
        {
            // Ends the event as a blank line would; the current line then starts the next event.
            self.split += 1;
            self.end_line(b"", items)?;
        }
        self.take_field(name, value)
    }

    /// Returns true if the data ends with `}` or is the end mark.
    fn is_complete(&self) -> bool {
        let data = &self.event.data;
        match self.last_byte {
            Some(b'}') => true,
            // The length is checked first: the comparison of a long list would scan its data for each line.
            Some(b']') => data.len() <= 2 * END_MARK.len() && data.trim_ascii_end() == END_MARK,
            _ => false,
        }
    }

    fn take_field(&mut self, name: &[u8], value: &[u8]) -> Result<(), SseError> {
        match name {
            b"data" => {
                // Checked before the copy. The additional byte is the line break between two data lines.
                if self.event.data.len() + value.len() + 1 > self.limits.event_bytes {
                    return Err(SseError::EventTooLarge);
                }
                // Several data lines are joined by LF.
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push(b'\n');
                }
                self.event.data.extend_from_slice(value);
                // White space at the end of a line does not change the last significant byte.
                self.last_byte = value.trim_ascii_end().last().copied().or(self.last_byte);
            }
            b"id" if self.keep == StoredFields::Data => {}
            // Invalid UTF-8 in a name is treated as no name; the data decides.
            b"event" => self.event.event = std::str::from_utf8(value).ok().map(str::to_owned),
            // The specification ignores ids with U+0000.
            b"id" if !value.contains(&0) => {
                self.event.id = std::str::from_utf8(value).ok().map(str::to_owned);
            }
            // Unknown fields, including `retry`, are ignored.
            _ => {}
        }
        Ok(())
    }
}

/// Returns true if the field starts a new event after a complete object or the end mark.
fn begins_event(name: &[u8], value: &[u8]) -> bool {
    // Peers without blank lines often indent their data.
    let value = value.trim_ascii();
    match name {
        b"data" => value.starts_with(b"{") || value == END_MARK,
        b"event" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: SseLimits = SseLimits {
        line_bytes: 64,
        event_bytes: 96,
    };

    fn decode(chunks: &[&[u8]]) -> Result<Vec<String>, SseError> {
        let mut decoder = Decoder::new(LIMITS);
        let mut items = Vec::new();
        for chunk in chunks {
            decoder.push(chunk, &mut items)?;
        }
        Ok(items
            .into_iter()
            .filter_map(|item| match item {
                SseItem::Event(event) => Some(String::from_utf8(event.data).unwrap()),
                SseItem::Comment => None,
            })
            .collect())
    }

    #[test]
    fn line_ends_and_chunk_cuts_never_change_events() {
        let texts = [
            "\u{feff}: hi\n\ndata: 你好\ndata:b\n\nid: 1\ndata: c\n\n",
            "data: 你好\r\ndata: b\r\n\r\nevent: x\r\ndata: c\r\n\r\n",
            "data: 你好\rdata: b\r\rdata:c\r\r",
        ];
        for text in texts {
            for cut in 0..=text.len() {
                let (left, right) = text.as_bytes().split_at(cut);
                assert_eq!(
                    decode(&[left, right]).unwrap(),
                    ["你好\nb", "c"],
                    "cut at {cut}"
                );
            }
            let bytes: Vec<&[u8]> = text.as_bytes().chunks(1).collect();
            assert_eq!(decode(&bytes).unwrap(), ["你好\nb", "c"]);
        }
    }

    #[test]
    fn ignores_events_without_empty_line() {
        assert!(decode(&[b"data: half\n"]).unwrap().is_empty());
        assert!(decode(&[b"data: half"]).unwrap().is_empty());
        assert_eq!(decode(&[b"data\n\n"]).unwrap(), [""]);
        assert!(decode(&[b"retry: 5\n\nid: 3\n\n"]).unwrap().is_empty());
    }

    #[test]
    fn splits_objects_without_blank_lines_between() {
        for (text, expected) in [
            (
                "data: {}\ndata: {\ndata:  }\ndata: [DONE] \n",
                &["{}", "{\n }", "[DONE] "][..],
            ),
            ("event: a\ndata: {}\nevent: b\ndata: {}", &["{}", "{}"]),
            (
                "data: [{}\ndata: ,{}]\n\ndata: x\ndata: y\n",
                &["[{}\n,{}]", "x\ny"],
            ),
        ] {
            let mut decoder = Decoder::of_data(LIMITS).splitting_objects();
            let mut items = Vec::new();
            decoder.push(text.as_bytes(), &mut items).unwrap();
            decoder.finish(&mut items).unwrap();
            let data = items.into_iter().map(|item| match item {
                SseItem::Event(event) => String::from_utf8(event.data).unwrap(),
                SseItem::Comment => String::new(),
            });
            assert_eq!(data.collect::<Vec<_>>(), expected, "{text:?}");
        }
    }

    #[test]
    fn last_id_persists_until_next_complete_id() {
        let mut decoder = Decoder::new(LIMITS);
        let mut items = Vec::new();
        for (text, last) in [
            (": run 1\n\n", None),
            ("id: 3\n", None),
            ("\n", Some("3")),
            ("data: a\n\n", Some("3")),
            ("id: 4\ndata: b\n\n: \n\nid: 5\n", Some("4")),
        ] {
            decoder.push(text.as_bytes(), &mut items).unwrap();
            assert_eq!(decoder.last_id(), last, "{text:?}");
        }
        items.retain(|item| *item != SseItem::Comment);
        assert_eq!(items.len(), 2, "an id without data is no event");
    }

    #[test]
    fn data_decoder_omits_ids() {
        let mut decoder = Decoder::of_data(LIMITS);
        let mut items = Vec::new();
        let text = b"event: x\nid: 1\ndata: a\n\n";
        decoder.push(text, &mut items).unwrap();
        let data = SseEvent {
            event: Some("x".to_owned()),
            data: b"a".to_vec(),
            ..SseEvent::default()
        };
        assert_eq!(items, [SseItem::Event(data)]);
    }

    #[test]
    fn limits_lines_and_events() {
        let long = [b'x'; 65];
        assert_eq!(decode(&[&long]), Err(SseError::LineTooLong));
        assert_eq!(decode(&[b"\n", &long, b"\n"]), Err(SseError::LineTooLong));
        let line = [b"data:".as_slice(), &[b'y'; 50], b"\n"].concat();
        assert_eq!(decode(&[&line, &line]), Err(SseError::EventTooLarge));
    }
}
