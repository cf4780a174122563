//! Three ways to frame results, one way to read them: bytes in, whole JSON documents out.

use domain::normalize::ResultLimits;
use protocol::sse::{Decoder, SseError, SseItem, SseLimits};
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer as _};
use serde_json::value::RawValue;

use crate::outbound::runner::ResultFormat;

/// What a reader found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// One JSON document, not judged yet.
    Result(Vec<u8>),
    /// A sign of life.
    Life,
}

/// What of an answer is larger than it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TooLarge {
    Line,
    Event,
    /// One JSON document, which is read to its end before its first result is.
    Document,
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

/// Reads the answer of a runner within bounds.
pub(crate) enum ResultReader {
    EventStream {
        decoder: Decoder,
        found: Vec<SseItem>,
    },
    Lines(Lines),
    Whole {
        body: Vec<u8>,
        most: usize,
        most_results: u64,
    },
}

/// Results a line each.
pub(crate) struct Lines {
    line: Vec<u8>,
    most: usize,
    is_first: bool,
}

/// The results of a whole answer, no more of them than a run may send.
struct Batch {
    most: u64,
    items: Vec<Item>,
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum BatchField {
    Results,
    #[serde(other)]
    Other,
}

impl<'de> Visitor<'de> for &mut Batch {
    type Value = bool;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with a list `results`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(field) = map.next_key()? {
            match field {
                BatchField::Results => {
                    map.next_value_seed(&mut *self)?;
                    found = true;
                }
                BatchField::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<bool, A::Error> {
        while (self.items.len() as u64) <= self.most {
            let Some(raw) = list.next_element::<&RawValue>()? else {
                return Ok(true);
            };
            self.items.push(Item::Result(raw.get().as_bytes().to_vec()));
        }
        // One more than a run may send is kept: the judge ends the run at it.
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(true)
    }
}

impl<'de> DeserializeSeed<'de> for &mut Batch {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

/// The results of `{"results": […]}`; `None` when the body is something else.
fn read_batch(body: &[u8], most: u64) -> Option<Vec<Item>> {
    let mut batch = Batch {
        most,
        items: Vec::new(),
    };
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let found = deserializer.deserialize_map(&mut batch).ok()?;
    deserializer.end().ok()?;
    found.then_some(batch.items)
}

impl ResultReader {
    pub(crate) fn new(format: ResultFormat, line_bytes: usize, limits: ResultLimits) -> Self {
        match format {
            ResultFormat::EventStream => {
                let limits = SseLimits {
                    line_bytes,
                    event_bytes: limits.event_bytes,
                };
                Self::EventStream {
                    decoder: Decoder::of_data(limits),
                    found: Vec::new(),
                }
            }
            ResultFormat::JsonLines => Self::Lines(Lines {
                line: Vec::new(),
                most: line_bytes,
                is_first: true,
            }),
            ResultFormat::Json => Self::Whole {
                body: Vec::new(),
                most: DOCUMENT_BYTES.max(limits.event_bytes).min(limits.run_bytes),
                most_results: limits.run_events,
            },
        }
    }

    /// Reads a chunk. Events that were whole before a limit was passed stand in `items`.
    pub(crate) fn push(&mut self, chunk: &[u8], items: &mut Vec<Item>) -> Result<(), TooLarge> {
        match self {
            Self::EventStream { decoder, found } => {
                let outcome = decoder.push(chunk, found);
                items.extend(found.drain(..).filter_map(|item| match item {
                    SseItem::Comment => Some(Item::Life),
                    SseItem::Event(event) if event.data.is_empty() => None,
                    SseItem::Event(event) => Some(Item::Result(event.data)),
                }));
                outcome.map_err(TooLarge::from)
            }
            Self::Lines(lines) => lines.push(chunk, items),
            Self::Whole { body, most, .. } => {
                if body.len() + chunk.len() > *most {
                    return Err(TooLarge::Document);
                }
                body.extend_from_slice(chunk);
                Ok(())
            }
        }
    }

    /// The body is over: what counts without a closing mark counts now.
    pub(crate) fn finish(&mut self, items: &mut Vec<Item>) {
        match self {
            Self::EventStream { .. } => {}
            Self::Lines(lines) => lines.end(items),
            Self::Whole {
                body, most_results, ..
            } => {
                let body = without_mark(std::mem::take(body));
                match read_batch(&body, *most_results) {
                    Some(results) => items.extend(results),
                    // Judged as it came: the rejection shows what was wrong.
                    None => items.push(Item::Result(body)),
                }
            }
        }
    }
}

impl Lines {
    fn push(&mut self, chunk: &[u8], items: &mut Vec<Item>) -> Result<(), TooLarge> {
        let mut parts = chunk.split(|byte| *byte == b'\n');
        let last = parts.next_back().unwrap_or_default();
        for part in parts {
            self.extend(part)?;
            self.end(items);
        }
        self.extend(last)
    }

    fn extend(&mut self, part: &[u8]) -> Result<(), TooLarge> {
        if self.line.len() + part.len() > self.most {
            return Err(TooLarge::Line);
        }
        self.line.extend_from_slice(part);
        Ok(())
    }

    fn end(&mut self, items: &mut Vec<Item>) {
        let mut line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_first) {
            line = without_mark(line);
        }
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        items.push(if is_blank {
            Item::Life
        } else {
            Item::Result(line)
        });
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
mod tests {
    use super::*;

    const LIMITS: ResultLimits = ResultLimits {
        event_bytes: 64,
        run_bytes: 64,
        run_events: 9,
        state_value_bytes: 9,
    };

    fn read(format: ResultFormat, chunks: &[&str]) -> Result<Vec<String>, TooLarge> {
        let mut reader = ResultReader::new(format, 32, LIMITS);
        let mut items = Vec::new();
        for chunk in chunks {
            reader.push(chunk.as_bytes(), &mut items)?;
        }
        reader.finish(&mut items);
        Ok(items
            .into_iter()
            .filter_map(|item| match item {
                Item::Result(raw) => Some(String::from_utf8(raw).unwrap()),
                Item::Life => None,
            })
            .collect())
    }

    #[test]
    fn lines_are_results_wherever_chunks_are_cut() {
        let lines = ["{\"a\":1}\n{\"b", "\":2}\r\n\n{\"c\":3}"];
        assert_eq!(
            read(ResultFormat::JsonLines, &lines).unwrap(),
            ["{\"a\":1}", "{\"b\":2}\r", "{\"c\":3}"]
        );
        let long = "x".repeat(33);
        assert_eq!(read(ResultFormat::JsonLines, &[&long]), Err(TooLarge::Line));
    }

    #[test]
    fn a_whole_answer_is_a_list_of_results() {
        let body = ["{\"results\":[{\"a\":1},", "{\"b\":2}]}"];
        assert_eq!(
            read(ResultFormat::Json, &body).unwrap(),
            ["{\"a\":1}", "{\"b\":2}"]
        );
        assert_eq!(
            read(ResultFormat::Json, &["{\"x\":1}"]).unwrap(),
            ["{\"x\":1}"]
        );
        let many = format!("{{\"results\":[{}1]}}", "1,".repeat(20));
        assert_eq!(
            read(ResultFormat::Json, &[&many]).unwrap().len(),
            10,
            "one past the limit"
        );
        let long = "x".repeat(65);
        assert_eq!(read(ResultFormat::Json, &[&long]), Err(TooLarge::Document));
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_result_and_stands_nowhere_else() {
        let lines = ["\u{feff}{\"a\":1}\n\u{feff}{\"b\":2}"];
        assert_eq!(
            read(ResultFormat::JsonLines, &lines).unwrap(),
            ["{\"a\":1}", "\u{feff}{\"b\":2}"]
        );
        let body = ["\u{feff}{\"results\":[{\"a\":1}]}"];
        assert_eq!(read(ResultFormat::Json, &body).unwrap(), ["{\"a\":1}"]);
        // Cut within it.
        let mut reader = ResultReader::new(ResultFormat::JsonLines, 32, LIMITS);
        let mut items = Vec::new();
        for byte in "\u{feff}1\n".as_bytes() {
            reader.push(&[*byte], &mut items).unwrap();
        }
        assert_eq!(items, [Item::Result(b"1".to_vec())]);
    }

    #[test]
    fn a_document_is_bounded_though_a_run_may_say_more() {
        let fits = |bytes: usize, limits: ResultLimits| {
            let mut reader = ResultReader::new(ResultFormat::Json, 32, limits);
            let chunk = vec![b' '; 1024 * 1024];
            let mut chunks = std::iter::repeat_n(&chunk, bytes / chunk.len());
            chunks.all(|chunk| reader.push(chunk, &mut Vec::new()).is_ok())
        };
        let wide = ResultLimits {
            run_bytes: 64 * 1024 * 1024,
            ..LIMITS
        };
        assert!(fits(DOCUMENT_BYTES, wide));
        assert!(!fits(DOCUMENT_BYTES + 1024 * 1024, wide));
        let large_events = ResultLimits {
            event_bytes: 16 * 1024 * 1024,
            ..wide
        };
        assert!(fits(16 * 1024 * 1024, large_events));
    }
}
