//! Limits for result parts stored in the run's row, which every list of runs reads.
//!
//! A part above its limit is truncated or dropped. The result is accepted, and a rejection reports the part.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::payload::CheckedPayload;
use super::rejection::{Reason, Rejection};
use super::text;

/// Maximum bytes of a usage, as JSON text.
const USAGE_BYTES: usize = 4 * 1024;
/// Maximum values in a usage, including nested ones.
const USAGE_VALUES: usize = 64;
/// Maximum bytes of a `finish_reason` or a `code`.
const CODE_BYTES: usize = 128;
/// Maximum bytes of an error message.
const MESSAGE_BYTES: usize = 4 * 1024;

/// A part of a result above its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TruncatedPart {
    Usage,
    FinishReason,
    Code,
    Message,
}

impl TruncatedPart {
    /// Returns the member of the result.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::FinishReason => "finish_reason",
            Self::Code => "code",
            Self::Message => "message",
        }
    }

    /// Returns a message with the limit, for the author of the runner.
    pub fn message(self) -> &'static str {
        match self {
            Self::Usage => {
                "usage holds more than 4 KiB or 64 values: the run keeps the members that fit; send sums, not lists"
            }
            Self::FinishReason => {
                "finish_reason is longer than 128 bytes and was cut; send a short code"
            }
            Self::Code => "code is longer than 128 bytes and was cut; send a short code",
            Self::Message => "the message of run.failed is longer than 4 KiB and was cut",
        }
    }

    /// Returns the rejection that reports the part. It has no `runner_sequence`, because the result with that
    /// number was accepted.
    pub fn rejection(self, raw: &[u8]) -> Rejection {
        // No `runner_sequence`: the result with that number was accepted.
        Rejection::new(Reason::PartTooLarge, None, raw, self.message())
    }
}

/// Truncates the texts of a terminal result for the run's row.
pub(super) fn cut_ending(checked: &mut CheckedPayload<'_>, shortened: &mut Vec<TruncatedPart>) {
    let parts = match checked {
        CheckedPayload::Completed { finish_reason, .. } => {
            vec![(finish_reason, CODE_BYTES, TruncatedPart::FinishReason)]
        }
        CheckedPayload::Failed { code, message, .. } => vec![
            (code, CODE_BYTES, TruncatedPart::Code),
            (message, MESSAGE_BYTES, TruncatedPart::Message),
        ],
        _ => return,
    };
    for (text, max, part) in parts {
        if text.len() > max {
            // A cut within a character would be invalid UTF-8.
            text.truncate(text.floor_char_boundary(max));
            // The runner may have sent megabytes, and the text stays in memory with the run.
            text.shrink_to_fit();
            shortened.push(part);
        }
    }
}

/// Returns the usage on one line, or the members that fit. Scalars take precedence over objects and lists.
pub(super) fn usage<'r>(
    usage: &'r RawValue,
    shortened: &mut Vec<TruncatedPart>,
) -> Cow<'r, RawValue> {
    let json = usage.get();
    // The count only runs for short texts.
    if json.len() <= USAGE_BYTES && values_in(json).is_some_and(|values| values <= USAGE_VALUES) {
        return text::one_line(usage);
    }
    shortened.push(TruncatedPart::Usage);
    // An unparseable usage becomes an empty object.
    let FittedMembers(members) = serde_json::from_str(json).unwrap_or_default();
    let members = format!("{{{}}}", members.join(","));
    Cow::Owned(RawValue::from_string(members).unwrap_or_else(|_| text::nothing()))
}

/// Counts the values in a JSON object without itself. `None`: above the limit.
fn values_in(json: &str) -> Option<usize> {
    let mut left = USAGE_VALUES + 1;
    // The error means that the count went below 0; syntax was checked before.
    let mut reader = serde_json::Deserializer::from_str(json);
    serde::de::DeserializeSeed::deserialize(Counting(&mut left), &mut reader).ok()?;
    Some(USAGE_VALUES - left)
}

/// Counts values down and fails at 0.
struct Counting<'a>(&'a mut usize);

impl<'de> serde::de::DeserializeSeed<'de> for Counting<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Some(left) = self.0.checked_sub(1) else {
            return Err(serde::de::Error::custom("too many values"));
        };
        // Set before the value, so that nested values continue the count.
        *self.0 = left;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Counting<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Counting(self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        while members.next_key::<IgnoredAny>()?.is_some() {
            members.next_value_seed(Counting(self.0))?;
        }
        Ok(())
    }
}

/// Members of an object that fit the limits of a usage, as JSON text.
#[derive(Default)]
struct FittedMembers(Vec<String>);

impl<'de> Deserialize<'de> for FittedMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FittingMembers)
    }
}

struct FittingMembers;

impl<'de> Visitor<'de> for FittingMembers {
    type Value = FittedMembers;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<FittedMembers, A::Error> {
        let mut plain = MemberLimits::default();
        let mut nested = MemberLimits::default();
        while let Some((name, value)) = members.next_entry::<Cow<'de, str>, &RawValue>()? {
            // Sums are more useful than their details, so scalars get the limits first.
            let limits = match value.get().as_bytes().first() {
                Some(b'{' | b'[') => &mut nested,
                _ => &mut plain,
            };
            limits.take(&name, value.get());
        }
        // Objects and lists get what the scalars left.
        for (member, values) in nested.taken {
            plain.keep(member, values);
        }
        let taken = plain.taken.into_iter().map(|(member, _)| member);
        Ok(FittedMembers(taken.collect()))
    }
}

/// Members with their number of values, within the common limits.
struct MemberLimits {
    taken: Vec<(String, usize)>,
    bytes: usize,
    values: usize,
}

impl Default for MemberLimits {
    fn default() -> Self {
        Self {
            taken: Vec::new(),
            // Without the braces.
            bytes: USAGE_BYTES - 2,
            values: USAGE_VALUES,
        }
    }
}

impl MemberLimits {
    fn take(&mut self, name: &str, value: &str) {
        // A cheap bound before values are counted.
        if name.len() + value.len() > self.bytes {
            return;
        }
        let Some(values) = values_in(value) else {
            return;
        };
        let Ok(name) = serde_json::to_string(name) else {
            return;
        };
        // A usage is one line of the ledger; line breaks occur only between tokens.
        let value = value.replace(['\n', '\r'], " ");
        self.keep(format!("{name}:{value}"), values + 1);
    }

    fn keep(&mut self, member: String, values: usize) {
        // Includes the comma before the next member.
        let bytes = member.len() + 1;
        if bytes > self.bytes || values > self.values {
            return;
        }
        self.bytes -= bytes;
        self.values -= values;
        self.taken.push((member, values));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(json: &str) -> (String, Vec<TruncatedPart>) {
        let raw = RawValue::from_string(json.to_owned()).unwrap();
        let mut shortened = Vec::new();
        let stored = usage(&raw, &mut shortened).get().to_owned();
        (stored, shortened)
    }

    #[test]
    fn keeps_usage_within_limits_unchanged() {
        let values = |many: usize| format!("{{\"x\":{:?}}}", vec![0; many]);
        for json in [
            "{}".to_owned(),
            r#"{"total_tokens":3,"details":{"a":[1,"b",null,true,1.5]}}"#.to_owned(),
            values(63),
            format!("{{\"x\":\"{}\"}}", "y".repeat(4096 - 8)),
        ] {
            assert_eq!(stored(&json), (json, Vec::new()));
        }
    }

    #[test]
    fn keeps_members_of_large_usage_that_fit() {
        let list = vec![0; 64];
        let long = "y".repeat(5000);
        for (json, expected) in [
            (
                format!(r#"{{"x":{list:?},"total_tokens":3}}"#),
                r#"{"total_tokens":3}"#,
            ),
            (
                format!(r#"{{"x":"{long}","a":{{"b":1}}, "c" :2}}"#),
                r#"{"c":2,"a":{"b":1}}"#,
            ),
            (format!(r#"{{"{long}":1}}"#), "{}"),
        ] {
            assert_eq!(
                stored(&json),
                (expected.to_owned(), vec![TruncatedPart::Usage])
            );
        }
        let many: Vec<_> = (0..100_000).map(|n| format!("\"k{n}\":{n}")).collect();
        let (left, _) = stored(&format!("{{{}}}", many.join(",")));
        assert_eq!(values_in(&left), Some(USAGE_VALUES));
        let text: Vec<_> = (0..100)
            .map(|n| format!("\"{n}\":\"{}\"", "\\n".repeat(40)))
            .collect();
        let (left, _) = stored(&format!("{{{}}}", text.join(",")));
        assert!(left.len() <= USAGE_BYTES && values_in(&left).is_some());
    }

    #[test]
    fn truncates_ending_texts_between_characters() {
        let mut shortened = Vec::new();
        let mut failed = CheckedPayload::Failed {
            code: "é".repeat(100),
            message: "m".repeat(5000),
            retryable: false,
        };
        cut_ending(&mut failed, &mut shortened);
        let CheckedPayload::Failed { code, message, .. } = failed else {
            unreachable!()
        };
        assert_eq!((code.len(), message.len()), (128, 4096));
        let mut completed = CheckedPayload::Completed {
            finish_reason: format!("a{}", "é".repeat(100)),
            message: None,
            outcome: None,
        };
        cut_ending(&mut completed, &mut shortened);
        let CheckedPayload::Completed { finish_reason, .. } = completed else {
            unreachable!()
        };
        assert_eq!(finish_reason.len(), 127);
        assert_eq!(
            shortened,
            [
                TruncatedPart::Code,
                TruncatedPart::Message,
                TruncatedPart::FinishReason
            ]
        );
    }
}
