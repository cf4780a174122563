//! Reads the bytes of an event: limits, text, then envelope. Invalid characters in strings are repaired first.

use std::borrow::Cow;

use protocol::admin::DeltaMode;
use protocol::result::ResultType;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::announced::kind_in;
use super::{Reason, Rejection, ResultValidator, Verdict};
use crate::json_repair::{
    JsonPart, SurrogateHalves, repair_json_part, repair_json_text, replace_halves,
};
use crate::json_text::check_json_text;
use crate::run::{Failure, FailureCode};

/// Members of a result that the gateway reads.
#[derive(Deserialize)]
pub(super) struct ResultEnvelope<'a> {
    #[serde(borrow)]
    pub(super) run_id: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) usage: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub(super) sequence: Option<&'a RawValue>,
}

const NO_JSON: &str = "an event is not JSON";
const NO_RESULT: &str =
    "an event is not an AgentRunResult, an object with `run_id`, `type` and `data`";

/// Reason for which bytes are not a result.
struct ReadFault {
    reason: Reason,
    message: String,
}

impl ReadFault {
    fn new(reason: Reason, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

fn read(text: &[u8]) -> Result<ResultEnvelope<'_>, ReadFault> {
    // Before the parser, whose error would not name the encoding.
    let line = std::str::from_utf8(text)
        .map_err(|_| ReadFault::new(Reason::InvalidUtf8, "an event is not UTF-8"))?;
    // Before values are built: the check bounds their depth and number.
    check_json_text(text)
        .map_err(|fault| ReadFault::new(Reason::InvalidJson, format!("an event {fault}")))?;
    serde_json::from_str(line).map_err(|error| {
        // Valid JSON of another shape.
        if error.is_data() {
            ReadFault::new(Reason::InvalidEnvelope, NO_RESULT)
        } else {
            ReadFault::new(Reason::InvalidJson, NO_JSON)
        }
    })
}

impl ResultValidator<'_> {
    /// `now`: `None` if times were checked before.
    pub(super) fn validate_event<'r>(&mut self, raw: &'r [u8], now: Option<i64>) -> Verdict<'r> {
        self.events += 1;
        // Counted before any check, so that rejected events cannot evade the limits.
        self.bytes = self.bytes.saturating_add(raw.len());
        // After the terminal result nothing may change the run.
        if self.ended {
            return Verdict::Reject(Rejection::after_terminal(raw));
        }
        // Ends the run: the limit would otherwise be checked again for each further event.
        if let Some(message) = self.over_limit(raw) {
            let failure = Failure::new(FailureCode::RunnerOutputLimit, message);
            return Verdict::fail(Reason::EventTooLarge, None, raw, failure);
        }
        let unread = match read(raw) {
            // A buffered surrogate half continues at the start of this delta.
            Ok(envelope) if self.halves.is_waiting() && continues_text(&envelope) => None,
            Ok(envelope) => return self.validate_envelope(envelope, raw, now),
            Err(unread) => Some(unread),
        };
        // Snapshots are complete texts, so halves are never joined across them.
        let part = if self.messages.delta_mode() == DeltaMode::Increment {
            repair_json_part(raw)
        } else {
            let text = repair_json_text(raw);
            JsonPart {
                text,
                halves: SurrogateHalves::Absent,
            }
        };
        match (unread, &part.text) {
            // Nothing to repair, so the first fault is the cause.
            (Some(unread), Cow::Borrowed(_)) => self.refuse_unread(&unread, raw),
            (unread, _) => self.validate_repaired(part, unread, raw, now),
        }
    }

    fn over_limit(&self, raw: &[u8]) -> Option<&'static str> {
        if raw.len() > self.limits.event_bytes {
            Some("an event is larger than limits.event_bytes")
        } else if self.events > self.limits.run_events {
            Some("the run sent more events than limits.run_events")
        } else if self.bytes > self.limits.run_bytes {
            Some("the run sent more bytes than limits.run_bytes")
        } else {
            None
        }
    }

    fn validate_repaired(
        &mut self,
        part: JsonPart<'_>,
        as_sent: Option<ReadFault>,
        raw: &[u8],
        now: Option<i64>,
    ) -> Verdict<'static> {
        let is_repaired = matches!(part.text, Cow::Owned(_));
        // Restored if the result is rejected: a rejected delta adds no text.
        let before = self.halves.clone();
        let text = self.joined(part);
        let verdict = match read(&text) {
            // The sequence compares the original bytes, and rejections quote them.
            Ok(envelope) => self.validate_envelope(envelope, raw, now).into_owned(),
            Err(unread) => {
                // Bytes of another encoding: the fault of the original bytes is more specific.
                let is_other = |sent: &ReadFault| {
                    let is_general = [NO_JSON, NO_RESULT].contains(&unread.message.as_str());
                    sent.reason == Reason::InvalidUtf8 && is_general
                };
                let unread = as_sent.filter(is_other).unwrap_or(unread);
                self.refuse_unread(&unread, raw)
            }
        };
        match verdict {
            Verdict::Accept(mut accepted) => {
                accepted.is_repaired = is_repaired;
                Verdict::Accept(accepted)
            }
            // A rejected result adds no text.
            refused => {
                self.halves = before;
                refused
            }
        }
    }

    /// Joins surrogate halves across two deltas.
    fn joined(&mut self, part: JsonPart<'_>) -> Vec<u8> {
        let JsonPart { text, halves } = part;
        let is_joined = halves == SurrogateHalves::Present || self.halves.is_waiting();
        // JSON that is too deep is never parsed to a value.
        if !is_joined || check_json_text(&text).is_err() {
            return text.into_owned();
        }
        let Ok(mut result) = serde_json::from_slice::<Value>(&text) else {
            return text.into_owned();
        };
        let is_delta = result["type"] == ResultType::MessageDelta.as_str();
        // Other results have no continued text.
        if let Some(Value::String(increment)) = result.pointer_mut("/data/chunk/content")
            && is_delta
        {
            self.halves.push(increment, halves);
        }
        if halves == SurrogateHalves::Present {
            // The text of the delta was joined; placeholders elsewhere have no partner.
            replace_halves(&mut result);
        }
        result.to_string().into_bytes()
    }

    fn refuse_unread(&mut self, unread: &ReadFault, raw: &[u8]) -> Verdict<'static> {
        let kind = kind_in(raw);
        if kind == Some(ResultType::MessageCompleted) {
            // A run that completes later must not succeed without this message.
            self.note_rejected_message(&unread.message);
        }
        // Unparseable text is rejected by its type. Any other fault only counts as a strike.
        let kind = kind.filter(|_| unread.reason == Reason::InvalidJson);
        self.refuse(kind, unread.reason, &unread.message, None, raw)
    }
}

/// Returns true for a result that continues a text.
fn continues_text(envelope: &ResultEnvelope<'_>) -> bool {
    envelope.kind == ResultType::MessageDelta.as_str()
}
