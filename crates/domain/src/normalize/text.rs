//! Text of events and messages.

use std::borrow::Cow;

use memchr::memchr2;
use protocol::JsonObject;
use protocol::admin::DeltaMode;
use protocol::message::Message;
use protocol::result::DEFAULT_FINISH_REASON;
use serde_json::Value;
use serde_json::value::RawValue;

use super::payload::Delta;

/// Returns the same JSON on one line. Line ends occur only between tokens.
pub(super) fn one_line(json: &RawValue) -> Cow<'_, RawValue> {
    // The ledger and SSE have one line per event; most results already are.
    if memchr2(b'\n', b'\r', json.get().as_bytes()).is_none() {
        return Cow::Borrowed(json);
    }
    // Raw line breaks within strings are invalid JSON, so these are between tokens.
    let line = json.get().replace(['\n', '\r'], " ");
    Cow::Owned(RawValue::from_string(line).expect("white space for white space keeps JSON valid"))
}

/// Returns the data of an event without data.
pub(super) fn nothing() -> Box<RawValue> {
    RawValue::from_string("{}".to_owned()).expect("an empty object is JSON")
}

/// Returns the same object without `message`.
pub(super) fn without_message(json: &str) -> Box<RawValue> {
    // The data was validated, so the fallback is never used.
    let mut object: JsonObject = serde_json::from_str(json).unwrap_or_default();
    object.remove("message");
    RawValue::from_string(Value::Object(object).to_string()).expect("a value serialises to JSON")
}

/// Returns the data of a `run.failed` with another code. `details` keeps the `own` code.
pub(super) fn as_failure(json: &str, code: &'static str, own: &str) -> Box<RawValue> {
    let object = serde_json::from_str(json).unwrap_or_default();
    with_replaced(object, "code", code, own)
}

/// Returns the data of a `run.completed` with a reserved finish reason. The reason becomes the default, and
/// `details` keeps the `own` reason.
pub(super) fn as_stopped(json: &str, own: &str, without_message: bool) -> Box<RawValue> {
    let mut object: JsonObject = serde_json::from_str(json).unwrap_or_default();
    if without_message {
        object.remove("message");
    }
    with_replaced(object, "finish_reason", DEFAULT_FINISH_REASON, own)
}

/// Replaces a member of the object and keeps its `own` value in `details`.
fn with_replaced(mut object: JsonObject, name: &str, value: &str, own: &str) -> Box<RawValue> {
    object.insert(name.to_owned(), value.into());
    // A runner's own details stay readable.
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

/// A snapshot in a form that all clients can display.
pub(super) struct SnapshotDelta {
    /// New text, or the complete text if it does not continue the previous text.
    increment: String,
    full_text: String,
}

/// Returns the same delta with the increment as `content` and the complete text as `all_content`.
pub(super) fn with_snapshot(json: &str, shown: SnapshotDelta) -> Box<RawValue> {
    let mut data: Value = serde_json::from_str(json).unwrap_or_default();
    if let Some(chunk) = data.get_mut("chunk").and_then(Value::as_object_mut) {
        // Other parts have no increment; clients use `all_content`.
        if chunk
            .get("content")
            .is_none_or(|content| !content.is_array())
        {
            chunk.insert("content".to_owned(), shown.increment.into());
        }
        chunk.insert("all_content".to_owned(), shown.full_text.into());
    }
    RawValue::from_string(data.to_string()).expect("a value serialises to JSON")
}

/// Maximum bytes of the message assembled from deltas. One event may always fill its own limit.
const GATHERED_BYTES: usize = 4 * 1024 * 1024;

/// Maximum complete messages kept for the transcript. The last is always kept.
const MAX_STORED_MESSAGES: usize = 100;

/// The complete messages of a run, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunMessages {
    /// The first messages and the last, if there are too many or they are too long.
    pub messages: Vec<Message>,
    /// Total number of messages.
    pub count: u64,
}

impl RunMessages {
    /// Returns the answer of the run.
    pub fn last(&self) -> Option<&Message> {
        self.messages.last()
    }
}

impl From<Message> for RunMessages {
    fn from(message: Message) -> Self {
        let messages = vec![message];
        Self { messages, count: 1 }
    }
}

/// Messages of the runner so far.
pub(super) struct Messages {
    delta_mode: DeltaMode,
    stored: RunMessages,
    /// Bytes of each kept message.
    bytes: Vec<usize>,
    /// `None`: the text exceeded its limit.
    text: Option<String>,
    /// Begin of the text after the last complete message.
    open_from: usize,
    max_bytes: usize,
}

/// The deltas exceed the size of a message.
pub(super) struct MessageTooLong;

impl Messages {
    pub(super) fn new(delta_mode: DeltaMode, event_bytes: usize) -> Self {
        Self {
            delta_mode,
            stored: RunMessages::default(),
            bytes: Vec::new(),
            text: Some(String::new()),
            open_from: 0,
            max_bytes: GATHERED_BYTES.max(event_bytes),
        }
    }

    /// `all_content` is the complete text so far and takes precedence. `content` of a snapshot endpoint is also
    /// complete. Returns the delta for clients in these cases.
    pub(super) fn add_delta(&mut self, delta: Delta<'_>) -> Option<SnapshotDelta> {
        let is_snapshot = self.delta_mode == DeltaMode::Snapshot;
        let full_text = match delta.full_text {
            Some(full_text) => full_text.into_owned(),
            // An empty snapshot is a chunk with calls only and must not erase the text.
            None if is_snapshot && !delta.increment.is_empty() => delta.increment.into_owned(),
            None => {
                self.gather(&delta.increment);
                return None;
            }
        };
        self.open_from = 0;
        if !is_snapshot {
            // `all_content` replaces the gathered text; later increments continue it.
            self.text = Some(full_text);
            return None;
        }
        let before = self.text.replace(full_text.clone()).unwrap_or_default();
        Some(SnapshotDelta {
            // A changed snapshot has no common increment; clients replace their text.
            increment: full_text
                .strip_prefix(before.as_str())
                .unwrap_or(&full_text)
                .to_owned(),
            full_text,
        })
    }

    fn gather(&mut self, increment: &str) {
        let Some(text) = &mut self.text else { return };
        if text.len() + increment.len() > self.max_bytes {
            // Dropped as soon as it is too long, to bound the memory of each run.
            self.text = None;
        } else {
            text.push_str(increment);
        }
    }

    /// `bytes`: size of the message as JSON.
    pub(super) fn complete(&mut self, message: Message, bytes: usize) {
        self.open_from = self.text.as_ref().map_or(0, String::len);
        let is_full = |stored: &[usize]| {
            let all = stored.iter().sum::<usize>().saturating_add(bytes);
            !stored.is_empty() && (stored.len() == MAX_STORED_MESSAGES || all > self.max_bytes)
        };
        while is_full(&self.bytes) {
            // The last kept message gives way, since the newest is the answer of the run.
            self.bytes.pop();
            self.stored.messages.pop();
        }
        self.bytes.push(bytes);
        self.stored.messages.push(message);
        // Counts removed messages as well.
        self.stored.count += 1;
    }

    /// Returns the messages of `message.completed`.
    pub(super) fn stored(&self) -> &RunMessages {
        &self.stored
    }

    /// Returns the text of the deltas after the last complete message.
    pub(super) fn open_text(&self) -> &str {
        let text = self.text.as_deref().unwrap_or_default();
        text.get(self.open_from..).unwrap_or_default()
    }

    pub(super) fn delta_mode(&self) -> DeltaMode {
        self.delta_mode
    }

    /// Returns the message assembled from the deltas, if any. `half`: replacement for an incomplete character at
    /// the end.
    pub(super) fn take_gathered(
        &mut self,
        half: Option<char>,
    ) -> Result<Option<Message>, MessageTooLong> {
        let text = self.text.as_mut().ok_or(MessageTooLong)?;
        let mut text = std::mem::take(text);
        text.extend(half);
        Ok((!text.is_empty()).then(|| Message::text("assistant", text)))
    }
}
