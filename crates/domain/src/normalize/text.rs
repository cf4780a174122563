//! The text of events and messages.

use protocol::admin::DeltaMode;
use protocol::message::Message;
use serde_json::Value;
use serde_json::value::RawValue;

use super::payload::Delta;

/// The most levels of nesting of one event.
const DEPTH: usize = 64;

/// Refuses what one database takes and another does not: deep nesting and U+0000. One linear pass.
pub(super) fn check_json_text(text: &str) -> Result<(), &'static str> {
    let bytes = text.as_bytes();
    let (mut depth, mut in_string, mut at) = (0_usize, false, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_string => {
                if bytes[at..].starts_with(b"\\u0000") {
                    return Err("an event holds the character U+0000");
                }
                at += 1;
            }
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > DEPTH {
                    return Err("an event is nested deeper than 64 levels");
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    Ok(())
}

/// The same JSON on one line: a line end can only stand between tokens.
pub(super) fn one_line(json: &str) -> Box<RawValue> {
    let line = if json.contains(['\n', '\r']) {
        json.replace(['\n', '\r'], " ")
    } else {
        json.to_owned()
    };
    RawValue::from_string(line).expect("white space for white space keeps JSON valid")
}

/// The same object without `message`.
pub(super) fn without_message(json: &str) -> Box<RawValue> {
    let mut object: serde_json::Map<String, Value> = serde_json::from_str(json).unwrap_or_default();
    object.remove("message");
    RawValue::from_string(Value::Object(object).to_string()).expect("a value serialises to JSON")
}

/// What the runner has said so far.
pub(super) struct Messages {
    delta_mode: DeltaMode,
    completed: Option<Message>,
    text: String,
}

impl Messages {
    pub(super) fn new(delta_mode: DeltaMode) -> Self {
        Self {
            delta_mode,
            completed: None,
            text: String::new(),
        }
    }

    /// `all_content` is the whole text so far and wins; so is `content` of a snapshot endpoint.
    pub(super) fn add_delta(&mut self, delta: Delta) {
        match (delta.whole, self.delta_mode) {
            (Some(whole), _) => self.text = whole,
            (None, DeltaMode::Snapshot) if !delta.increment.is_empty() => {
                self.text = delta.increment;
            }
            (None, _) => self.text.push_str(&delta.increment),
        }
    }

    pub(super) fn complete(&mut self, message: Message) {
        self.completed = Some(message);
    }

    /// The last `message.completed`.
    pub(super) fn completed(&self) -> Option<Message> {
        self.completed.clone()
    }

    /// The message that the deltas make, when they made any.
    pub(super) fn gathered(&self) -> Option<Message> {
        (!self.text.is_empty()).then(|| Message::text("assistant", self.text.clone()))
    }
}
