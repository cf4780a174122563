//! The text of events and messages.

use std::borrow::Cow;

use memchr::memchr2;
use protocol::JsonObject;
use protocol::admin::DeltaMode;
use protocol::message::Message;
use protocol::result::{FINISH_REASON, RUNNER_ERROR};
use serde_json::Value;
use serde_json::value::RawValue;

use super::payload::Delta;

/// The same JSON on one line: a line end can only stand between tokens.
pub(super) fn one_line(json: &RawValue) -> Cow<'_, RawValue> {
    if memchr2(b'\n', b'\r', json.get().as_bytes()).is_none() {
        return Cow::Borrowed(json);
    }
    let line = json.get().replace(['\n', '\r'], " ");
    Cow::Owned(RawValue::from_string(line).expect("white space for white space keeps JSON valid"))
}

/// The data of an event that has none.
pub(super) fn nothing() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("an empty object is JSON")
}

/// The same object without `message`.
pub(super) fn without_message(json: &str) -> Box<RawValue> {
    let mut object: JsonObject = serde_json::from_str(json).unwrap_or_default();
    object.remove("message");
    RawValue::from_string(Value::Object(object).to_string()).expect("a value serialises to JSON")
}

/// The data of a `run.failed` whose code is reserved: it fails as `runner.error`, and names its `own` code in `details`.
pub(super) fn as_runner_error(json: &str, own: &str) -> Box<RawValue> {
    let object = serde_json::from_str(json).unwrap_or_default();
    with_replaced(object, ("code", RUNNER_ERROR), own)
}

/// The data of a `run.completed` whose `own` finish reason is reserved: the reason is the default, and `details` names
/// the own one.
pub(super) fn as_stopped(json: &str, own: &str, without_message: bool) -> Box<RawValue> {
    let mut object: JsonObject = serde_json::from_str(json).unwrap_or_default();
    if without_message {
        object.remove("message");
    }
    with_replaced(object, ("finish_reason", FINISH_REASON), own)
}

/// The object with another value of this member, whose `own` value stands in `details` from then on.
fn with_replaced(mut object: JsonObject, (name, value): (&str, &str), own: &str) -> Box<RawValue> {
    object.insert(name.to_owned(), value.into());
    match object.get_mut("details") {
        Some(Value::Object(details)) => {
            details.insert(name.to_owned(), own.into());
        }
        _ => {
            object.insert("details".to_owned(), serde_json::json!({name: own}));
        }
    }
    RawValue::from_string(Value::Object(object).to_string()).expect("a value serialises to JSON")
}

/// A snapshot as every client can show it.
pub(super) struct Shown {
    /// What is new; the whole where it does not go on from the text before.
    increment: String,
    whole: String,
}

/// The same delta with the increment as its `content` and the whole text as `all_content`.
pub(super) fn with_snapshot(json: &str, shown: Shown) -> Box<RawValue> {
    let mut data: Value = serde_json::from_str(json).unwrap_or_default();
    if let Some(chunk) = data.get_mut("chunk").and_then(Value::as_object_mut) {
        // Parts of other kinds have no increment: `all_content` is what holds there.
        if chunk
            .get("content")
            .is_none_or(|content| !content.is_array())
        {
            chunk.insert("content".to_owned(), shown.increment.into());
        }
        chunk.insert("all_content".to_owned(), shown.whole.into());
    }
    RawValue::from_string(data.to_string()).expect("a value serialises to JSON")
}

/// What the deltas of a run may say together, where they make its message; one event may always say as much as it holds.
const GATHERED_BYTES: usize = 4 * 1024 * 1024;

/// Whole messages of a run that are kept for its transcript; the last one always is.
const KEPT_MESSAGES: usize = 100;

/// The whole messages of a run, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Said {
    /// Of very many, or very long ones, the first and the last.
    pub messages: Vec<Message>,
    /// How many there were.
    pub count: u64,
}

impl Said {
    /// The answer of the run.
    pub fn last(&self) -> Option<&Message> {
        self.messages.last()
    }
}

impl From<Message> for Said {
    fn from(message: Message) -> Self {
        let messages = vec![message];
        Self { messages, count: 1 }
    }
}

/// What the runner has said so far.
pub(super) struct Messages {
    delta_mode: DeltaMode,
    said: Said,
    /// The bytes of each message that is kept.
    bytes: Vec<usize>,
    /// `None`: it has become more than is gathered.
    text: Option<String>,
    most: usize,
}

/// The deltas say more than a message holds.
pub(super) struct Outgrown;

impl Messages {
    pub(super) fn new(delta_mode: DeltaMode, event_bytes: usize) -> Self {
        Self {
            delta_mode,
            said: Said::default(),
            bytes: Vec::new(),
            text: Some(String::new()),
            most: GATHERED_BYTES.max(event_bytes),
        }
    }

    /// `all_content` is the whole text so far and wins; so is `content` of a snapshot endpoint, whose
    /// deltas are given as they go on to clients.
    pub(super) fn add_delta(&mut self, delta: Delta<'_>) -> Option<Shown> {
        let is_snapshot = self.delta_mode == DeltaMode::Snapshot;
        let whole = match delta.whole {
            Some(whole) => whole.into_owned(),
            None if is_snapshot && !delta.increment.is_empty() => delta.increment.into_owned(),
            None => {
                self.gather(&delta.increment);
                return None;
            }
        };
        if !is_snapshot {
            self.text = Some(whole);
            return None;
        }
        let before = self.text.replace(whole.clone()).unwrap_or_default();
        Some(Shown {
            increment: whole
                .strip_prefix(before.as_str())
                .unwrap_or(&whole)
                .to_owned(),
            whole,
        })
    }

    fn gather(&mut self, increment: &str) {
        let Some(text) = &mut self.text else { return };
        if text.len() + increment.len() > self.most {
            self.text = None;
        } else {
            text.push_str(increment);
        }
    }

    /// `bytes`: what it has as JSON.
    pub(super) fn complete(&mut self, message: Message, bytes: usize) {
        let is_full = |kept: &[usize]| {
            let all = kept.iter().sum::<usize>().saturating_add(bytes);
            !kept.is_empty() && (kept.len() == KEPT_MESSAGES || all > self.most)
        };
        while is_full(&self.bytes) {
            self.bytes.pop();
            self.said.messages.pop();
        }
        self.bytes.push(bytes);
        self.said.messages.push(message);
        self.said.count += 1;
    }

    /// Messages of `message.completed`.
    pub(super) fn said(&self) -> &Said {
        &self.said
    }

    pub(super) fn delta_mode(&self) -> DeltaMode {
        self.delta_mode
    }

    /// Takes out the message that the deltas make, when they made any. `half`: what stands for the rest of a character
    /// that never came.
    pub(super) fn take_gathered(
        &mut self,
        half: Option<char>,
    ) -> Result<Option<Message>, Outgrown> {
        let text = self.text.as_mut().ok_or(Outgrown)?;
        let mut text = std::mem::take(text);
        text.extend(half);
        Ok((!text.is_empty()).then(|| Message::text("assistant", text)))
    }
}
