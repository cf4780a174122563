//! Three ways to frame results, one way to read them: bytes in, whole JSON documents out.

use domain::normalize::ResultLimits;
use protocol::sse::{Decoder, SseError, SseItem, SseLimits};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::outbound::runner::ResultFormat;

/// What a reader found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Item {
    /// One JSON document, not judged yet.
    Result(Vec<u8>),
    /// A sign of life.
    Life,
}

/// Reads the answer of a runner within bounds.
pub(super) enum ResultReader {
    EventStream(Decoder),
    Lines { line: Vec<u8>, most: usize },
    Whole { body: Vec<u8>, most: usize },
}

#[derive(Deserialize)]
struct Batch<'a> {
    #[serde(borrow)]
    results: Vec<&'a RawValue>,
}

impl ResultReader {
    pub(super) fn new(format: ResultFormat, line_bytes: usize, limits: ResultLimits) -> Self {
        match format {
            ResultFormat::EventStream => {
                let limits = SseLimits {
                    line_bytes,
                    event_bytes: limits.event_bytes,
                };
                Self::EventStream(Decoder::new(limits))
            }
            ResultFormat::JsonLines => Self::Lines {
                line: Vec::new(),
                most: line_bytes,
            },
            ResultFormat::Json => Self::Whole {
                body: Vec::new(),
                most: limits.run_bytes,
            },
        }
    }

    /// Reads a chunk. Events that were whole before a limit was passed stand in `items`.
    pub(super) fn push(&mut self, chunk: &[u8], items: &mut Vec<Item>) -> Result<(), SseError> {
        match self {
            Self::EventStream(decoder) => {
                let mut found = Vec::new();
                let outcome = decoder.push(chunk, &mut found);
                items.extend(found.into_iter().filter_map(|item| match item {
                    SseItem::Comment => Some(Item::Life),
                    SseItem::Event(event) if event.data.is_empty() => None,
                    SseItem::Event(event) => Some(Item::Result(event.data)),
                }));
                outcome
            }
            Self::Lines { line, most } => push_lines(line, *most, chunk, items),
            Self::Whole { body, most } => {
                if body.len() + chunk.len() > *most {
                    return Err(SseError::EventTooLarge);
                }
                body.extend_from_slice(chunk);
                Ok(())
            }
        }
    }

    /// The body is over: what counts without a closing mark counts now.
    pub(super) fn finish(&mut self, items: &mut Vec<Item>) {
        match self {
            Self::EventStream(_) => {}
            Self::Lines { line, .. } => end_line(std::mem::take(line), items),
            Self::Whole { body, .. } => match serde_json::from_slice::<Batch<'_>>(body) {
                Ok(batch) => {
                    let results = batch.results.into_iter();
                    items.extend(results.map(|raw| Item::Result(raw.get().as_bytes().to_vec())));
                }
                // Judged as it came: the rejection shows what was wrong.
                Err(_) => items.push(Item::Result(std::mem::take(body))),
            },
        }
    }
}

fn push_lines(
    line: &mut Vec<u8>,
    most: usize,
    chunk: &[u8],
    items: &mut Vec<Item>,
) -> Result<(), SseError> {
    let mut parts = chunk.split(|byte| *byte == b'\n');
    let last = parts.next_back().unwrap_or_default();
    for part in parts {
        if line.len() + part.len() > most {
            return Err(SseError::LineTooLong);
        }
        line.extend_from_slice(part);
        end_line(std::mem::take(line), items);
    }
    if line.len() + last.len() > most {
        return Err(SseError::LineTooLong);
    }
    line.extend_from_slice(last);
    Ok(())
}

fn end_line(line: Vec<u8>, items: &mut Vec<Item>) {
    let is_blank = line.iter().all(u8::is_ascii_whitespace);
    items.push(if is_blank {
        Item::Life
    } else {
        Item::Result(line)
    });
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

    fn read(format: ResultFormat, chunks: &[&str]) -> Result<Vec<String>, SseError> {
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
        assert_eq!(
            read(ResultFormat::JsonLines, &[&long]),
            Err(SseError::LineTooLong)
        );
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
        let long = "x".repeat(65);
        assert_eq!(
            read(ResultFormat::Json, &[&long]),
            Err(SseError::EventTooLarge)
        );
    }
}
