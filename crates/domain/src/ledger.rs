//! Ledger format of an event: one JSON line, and the SSE frame for clients (`docs/protocol.md`, Ledger events).

use protocol::id::RunId;
use protocol::result::{GATEWAY_TYPES, ResultType};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Author of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LedgerSource {
    Runner,
    Host,
}

/// An event to append to the ledger.
#[derive(Clone, Debug)]
pub struct LedgerEvent<'a> {
    pub run_id: RunId,
    pub sequence: u64,
    pub kind: &'a str,
    /// One line of JSON: the runner's own bytes.
    pub data: &'a RawValue,
    pub usage: Option<&'a RawValue>,
    /// Creation time, in epoch seconds.
    pub created_at: i64,
    pub source: LedgerSource,
    /// An object or null.
    pub metadata: &'a Value,
}

#[derive(Serialize)]
struct LedgerLine<'a> {
    run_id: RunId,
    sequence: u64,
    r#type: &'a str,
    data: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<&'a RawValue>,
    created_at: i64,
    source: &'a str,
    #[serde(skip_serializing_if = "Value::is_null")]
    metadata: &'a Value,
}

impl LedgerEvent<'_> {
    /// Appends the event as a frame and returns its line, a slice of the frame. The line is an `AgentRunEvent`
    /// as JSON, with keys in the contract's order and without nulls.
    pub fn write_frame<'f>(&self, frames: &'f mut Vec<u8>) -> &'f str {
        // The line is written into the frame directly: readers and the database share one serialization.
        begin_frame(frames, self.sequence, self.kind);
        let begin = frames.len();
        self.write_line(frames);
        let end = frames.len();
        end_frame(frames);
        std::str::from_utf8(&frames[begin..end]).expect("JSON is text")
    }

    fn write_line(&self, line: &mut Vec<u8>) {
        let event = LedgerLine {
            run_id: self.run_id,
            sequence: self.sequence,
            r#type: self.kind,
            data: self.data,
            usage: self.usage,
            created_at: self.created_at,
            source: match self.source {
                LedgerSource::Runner => "runner",
                LedgerSource::Host => "host",
            },
            metadata: self.metadata,
        };
        serde_json::to_writer(line, &event).expect("texts and raw JSON always serialise");
    }
}

/// Appends the frame of one ledger line. `event:` contains the type only if it is known.
pub fn write_frame(frames: &mut Vec<u8>, sequence: u64, kind: &str, line: &str) {
    begin_frame(frames, sequence, kind);
    frames.extend_from_slice(line.as_bytes());
    end_frame(frames);
}

fn begin_frame(frames: &mut Vec<u8>, sequence: u64, kind: &str) {
    // SSE parsers end a field at a line break, so only registered types enter this field.
    let result = ResultType::parse(kind).map(ResultType::as_str);
    let own = || GATEWAY_TYPES.into_iter().find(|own| *own == kind);
    let event = result.or_else(own).unwrap_or("unknown");
    frames.extend_from_slice(b"id: ");
    serde_json::to_writer(&mut *frames, &sequence).expect("numbers always serialise");
    frames.extend_from_slice(b"\nevent: ");
    frames.extend_from_slice(event.as_bytes());
    frames.extend_from_slice(b"\ndata: ");
}

fn end_frame(frames: &mut Vec<u8>) {
    frames.extend_from_slice(b"\n\n");
}

/// Fields of a stored line that readers need.
#[derive(Debug, Deserialize)]
pub struct LineHead<'a> {
    pub sequence: u64,
    #[serde(borrow, rename = "type")]
    pub kind: std::borrow::Cow<'a, str>,
}

impl<'a> LineHead<'a> {
    /// Parses the head of a stored line.
    pub fn of(line: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_contain_ledger_lines_with_ordered_keys() {
        let run_id: RunId = "01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61".parse().unwrap();
        let data = RawValue::from_string(
            r#"{"chunk":{"role":"assistant","content":"hello "}}"#.to_owned(),
        );
        let data = data.unwrap();
        let event = LedgerEvent {
            run_id,
            sequence: 1,
            kind: "message.delta",
            data: &data,
            usage: None,
            created_at: 1_795_291_200,
            source: LedgerSource::Runner,
            metadata: &Value::Null,
        };
        let mut frames = Vec::new();
        let line = event.write_frame(&mut frames).to_owned();
        let mut same = Vec::new();
        write_frame(&mut same, 1, "message.delta", &line);
        assert_eq!(frames, same);
        assert_eq!(
            String::from_utf8(frames).unwrap(),
            "id: 1\nevent: message.delta\ndata: {\"run_id\":\"01a1ffb1-ba00-7c3a-9b1e-5f0c2a7d4e61\",\
             \"sequence\":1,\"type\":\"message.delta\",\"data\":{\"chunk\":{\"role\":\"assistant\",\
             \"content\":\"hello \"}},\"created_at\":1795291200,\"source\":\"runner\"}\n\n"
        );
        assert_eq!(LineHead::of(&line).unwrap().kind, "message.delta");
    }

    #[test]
    fn sse_event_field_never_contains_runner_text() {
        let mut frames = Vec::new();
        write_frame(&mut frames, 2, "x\ndata: forged", "{}");
        assert_eq!(frames, b"id: 2\nevent: unknown\ndata: {}\n\n");
    }
}
