//! Repairs strings in a peer's JSON text: lone surrogates, U+0000, invalid UTF-8, raw control characters.
//!
//! Parsers and databases reject these, so the repair runs before
//! [`check_json_text`](crate::json_text::check_json_text) and the parser. The repair is one linear pass without
//! recursion. The output has at most six times the bytes of the input.
//!
//! A text that arrives in increments can be cut within a surrogate pair. [`repair_json_part`] keeps such halves
//! as placeholders through the parser. A [`SurrogateJoiner`] for each text joins adjacent halves.

use std::borrow::Cow;

use memchr::memchr;
use serde_json::Value;

use crate::json_text::code_unit;

/// First placeholder. The 2,048 placeholders are the last private-use characters of plane 16.
const FIRST_HALF: u32 = 0x10_F800;
/// Lowest high surrogate that encodes a placeholder.
const FIRST_OWN_HIGH: u16 = 0xDBFE;

/// Replaces lone surrogates, U+0000 and invalid UTF-8 by U+FFFD, and escapes raw control characters in strings.
/// `Owned`: the text was repaired, which the caller reports.
pub fn repair_json_text(text: &[u8]) -> Cow<'_, [u8]> {
    repair(text, false).text
}

/// Placeholders for halves of surrogate pairs in a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SurrogateHalves {
    Absent,
    /// Some strings begin or end with a placeholder.
    Present,
}

/// JSON text of one increment.
#[derive(Debug, PartialEq, Eq)]
pub struct JsonPart<'a> {
    /// `Owned`: the text was repaired, which the caller reports.
    pub text: Cow<'a, [u8]>,
    /// If present, pass each string with a placeholder at its begin or end through its [`SurrogateJoiner`], and all
    /// others through [`replace_halves`].
    pub halves: SurrogateHalves,
}

/// Like [`repair_json_text`], but keeps a low half that starts a string and a high half that ends one as
/// placeholders. A text that contains characters of the placeholder range gets no placeholders.
pub fn repair_json_part(text: &[u8]) -> JsonPart<'_> {
    repair(text, true)
}

fn repair(text: &[u8], keeps_halves: bool) -> JsonPart<'_> {
    // Allocates only for invalid UTF-8, which is rare.
    let valid = match String::from_utf8_lossy(text) {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(valid) => Cow::Owned(valid.into_bytes()),
    };
    // A placeholder that the peer sent as text would be taken for half of a pair.
    let keeps_halves = keeps_halves && !has_own_placeholders(&valid);
    let mut pass = Pass {
        text: &valid,
        repaired: Vec::new(),
        copied: 0,
        keeps_halves,
        halves: SurrogateHalves::Absent,
    };
    let mut at = 0;
    while let Some(quote) = memchr(b'"', valid.get(at..).unwrap_or_default()) {
        at = pass.string(at + quote + 1);
    }
    let halves = pass.halves;
    let text = match pass.end() {
        Some(repaired) => Cow::Owned(repaired),
        None => valid,
    };
    JsonPart { text, halves }
}

/// Returns true if valid UTF-8 has a character of the placeholder range, raw or escaped.
fn has_own_placeholders(text: &[u8]) -> bool {
    // 0xF4 0x8F 0xA0–0xBF begins the UTF-8 of the range U+10F800 to U+10FFFF.
    let is_raw = |at: usize| matches!(text.get(at..at + 3), Some([0xF4, 0x8F, 0xA0..=0xBF]));
    let is_escaped = |at: usize| code_unit(text, at).is_some_and(is_own_high);
    memchr::memchr2_iter(0xF4, b'\\', text).any(|at| is_raw(at) || is_escaped(at))
}

fn is_own_high(unit: u16) -> bool {
    (FIRST_OWN_HIGH..=0xDBFF).contains(&unit)
}

/// One pass over a text.
struct Pass<'a> {
    text: &'a [u8],
    repaired: Vec<u8>,
    /// Number of bytes already in `repaired`.
    copied: usize,
    keeps_halves: bool,
    halves: SurrogateHalves,
}

impl Pass<'_> {
    /// Reads a string from after its opening quote to after its closing quote.
    fn string(&mut self, start: usize) -> usize {
        let mut at = start;
        while let Some(&byte) = self.text.get(at) {
            at = match byte {
                b'"' => return at + 1,
                // Only `\uXXXX` may need a repair; see `escape`.
                b'\\' => self.escape(start, at),
                // PostgreSQL rejects U+0000, so it cannot be kept even as an escape.
                0 => self.replace(at, at + 1, char::REPLACEMENT_CHARACTER),
                1..=0x1F => self.put(at, at + 1, format!("\\u{byte:04x}").as_bytes()),
                _ => at + 1,
            };
        }
        at
    }

    /// Returns the offset after the escape.
    fn escape(&mut self, start: usize, at: usize) -> usize {
        // Two bytes, so that an escaped quote or backslash does not end the string.
        let Some(unit) = code_unit(self.text, at) else {
            return at + 2;
        };
        let end = at + 6;
        let may_join = match unit {
            0 => false,
            // A complete pair stays as it is.
            0xD800..=0xDBFF => match code_unit(self.text, end) {
                Some(0xDC00..=0xDFFF) => return end + 6,
                // A half at the end of the string may continue in the next increment.
                _ => self.text.get(end) == Some(&b'"'),
            },
            // A half at the start may complete one of the last increment.
            0xDC00..=0xDFFF => at == start,
            _ => return end,
        };
        let placeholder = char::from_u32(FIRST_HALF + u32::from(unit.wrapping_sub(0xD800)));
        match placeholder.filter(|_| may_join && self.keeps_halves) {
            Some(placeholder) => {
                self.halves = SurrogateHalves::Present;
                self.replace(at, end, placeholder)
            }
            None => self.replace(at, end, char::REPLACEMENT_CHARACTER),
        }
    }

    fn replace(&mut self, from: usize, to: usize, by: char) -> usize {
        self.put(from, to, by.encode_utf8(&mut [0; 4]).as_bytes())
    }

    fn put(&mut self, from: usize, to: usize, by: &[u8]) -> usize {
        // Copies the text since the last repair only now: a text without repairs is never copied.
        self.repaired
            .extend_from_slice(&self.text[self.copied..from]);
        self.repaired.extend_from_slice(by);
        self.copied = to;
        to
    }

    /// Returns the complete text. `None`: nothing was replaced.
    fn end(mut self) -> Option<Vec<u8>> {
        // Every repair moves `copied`, and none ends at offset 0.
        if self.copied == 0 {
            return None;
        }
        self.repaired.extend_from_slice(&self.text[self.copied..]);
        Some(self.repaired)
    }
}

/// Returns the surrogate of a placeholder.
fn half_of(character: char) -> Option<u16> {
    // Placeholders are 2,048 consecutive characters, one for each surrogate.
    let offset = u32::from(character).checked_sub(FIRST_HALF)?;
    u16::try_from(0xD800 + offset).ok()
}

/// Joins the surrogate halves of one text that arrives in increments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurrogateJoiner {
    /// A high half at the end of the last increment.
    high: Option<u16>,
}

impl SurrogateJoiner {
    /// Processes the next increment: joins a half at its start with the previous increment, and buffers a half
    /// at its end. `halves`: of its [`JsonPart`].
    pub fn push(&mut self, text: &mut String, halves: SurrogateHalves) {
        let has_halves = halves == SurrogateHalves::Present;
        // An empty increment must not end a buffered half.
        if text.is_empty() || (!has_halves && self.high.is_none()) {
            return;
        }
        let half = |character: Option<char>| character.and_then(half_of).filter(|_| has_halves);
        let low = half(text.chars().next()).filter(|unit| *unit >= 0xDC00);
        // A buffered half whose partner does not follow is lost: U+FFFD replaces it.
        let begins = match (self.high.take(), low) {
            (None, None) => None,
            (Some(high), Some(low)) => char::decode_utf16([high, low]).next().and_then(Result::ok),
            _ => Some(char::REPLACEMENT_CHARACTER),
        };
        if let Some(begins) = begins {
            // All placeholders have the same length in UTF-8.
            let taken = low.map_or(0, |_| '\u{10F800}'.len_utf8());
            text.replace_range(..taken, begins.encode_utf8(&mut [0; 4]));
        }
        // The half is buffered, not sent: its partner may start the next increment.
        if let Some(high) = half(text.chars().next_back()).filter(|unit| *unit < 0xDC00) {
            text.pop();
            self.high = Some(high);
        }
    }

    /// Ends the text. Returns U+FFFD for a buffered half.
    pub fn finish(&mut self) -> Option<char> {
        self.high.take().map(|_| char::REPLACEMENT_CHARACTER)
    }

    /// Returns true if a half is buffered.
    pub fn is_waiting(&self) -> bool {
        self.high.is_some()
    }
}

/// Replaces the placeholders in all strings of a value by U+FFFD. Only for values of a part with placeholders,
/// after the check of their depth.
pub fn replace_halves(value: &mut Value) {
    match value {
        Value::String(text) => seal(text),
        Value::Array(items) => items.iter_mut().for_each(replace_halves),
        Value::Object(members) => {
            let has_half = |name: &String| name.chars().any(|one| half_of(one).is_some());
            // Names change in the map only if necessary, since a rebuild costs a hash of each.
            if members.keys().any(has_half) {
                let taken = std::mem::take(members);
                members.extend(taken.into_iter().map(|(mut name, value)| {
                    seal(&mut name);
                    (name, value)
                }));
            }
            members.values_mut().for_each(replace_halves);
        }
        _ => {}
    }
}

fn seal(text: &mut String) {
    if text.chars().any(|one| half_of(one).is_some()) {
        let sealed = |one| half_of(one).map_or(one, |_| char::REPLACEMENT_CHARACTER);
        *text = text.chars().map(sealed).collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::json_text::check_json_text;

    fn check(text: &[u8], expected: &Value) {
        let repaired = repair_json_text(text);
        assert!(matches!(repaired, Cow::Owned(_)), "{text:?}");
        assert_eq!(check_json_text(&repaired), Ok(()));
        let value: Value = serde_json::from_slice(&repaired).unwrap();
        assert_eq!(&value, expected, "{}", String::from_utf8_lossy(text));
    }

    #[test]
    fn replaces_invalid_characters_in_strings() {
        for (text, expected) in [
            (&br#"{"a":"x\ud83d"}"#[..], json!({"a": "x\u{FFFD}"})),
            (br#"{"a":"\ude00x"}"#, json!({"a": "\u{FFFD}x"})),
            (br#"["\ud83d\ud83d\ude00"]"#, json!(["\u{FFFD}😀"])),
            (br#"["\ude00\ud83d"]"#, json!(["\u{FFFD}\u{FFFD}"])),
            (br#"["\uD83D\n"]"#, json!(["\u{FFFD}\n"])),
            (br#"["\\\u0000\\u0000"]"#, json!(["\\\u{FFFD}\\u0000"])),
            (br#"{"\u0000":1}"#, json!({"\u{FFFD}": 1})),
            (b"[\"a\xFFb\"]", json!(["a\u{FFFD}b"])),
            (b"[\"a\xE2\x82\"]", json!(["a\u{FFFD}"])),
            (b"[\"a\nb\x00\x1b\"]", json!(["a\nb\u{FFFD}\u{1b}"])),
        ] {
            check(text, &expected);
        }
    }

    #[test]
    fn leaves_valid_text_unchanged() {
        for text in [
            &br#"{"a":"\ud83d\ude00 \u00e9 \" \\ud83d \/"}"#[..],
            b"{\n\t\"a\": [1, \"\xC3\xA9\"]\n}",
            b"",
            b"\"open",
            b"\"open\\",
            b"\"\\u12",
            b"not JSON",
        ] {
            assert_eq!(repair_json_text(text), Cow::Borrowed(text));
            assert_eq!(repair_json_part(text).halves, SurrogateHalves::Absent);
        }
    }

    fn increments(parts: &[&str]) -> String {
        let mut joiner = SurrogateJoiner::default();
        let mut joined = String::new();
        for part in parts {
            let JsonPart { text, halves } = repair_json_part(part.as_bytes());
            let mut text: String = serde_json::from_slice(&text).unwrap();
            joiner.push(&mut text, halves);
            joined.push_str(&text);
        }
        joined.extend(joiner.finish());
        joined
    }

    #[test]
    fn joins_surrogate_halves_of_consecutive_increments() {
        for (parts, expected) in [
            (&[r#""a\ud83d""#, r#""\ude00b""#][..], "a😀b"),
            (&[r#""\ud83d""#, r#""""#, r#""\ude00""#], "😀"),
            (&[r#""\ud83d""#, r#""\ude00\ud83d""#, r#""\ude01""#], "😀😁"),
            (&[r#""\ud83d""#, r#""x""#], "\u{FFFD}x"),
            (&[r#""\ud83d""#, r#""\ud83d""#], "\u{FFFD}\u{FFFD}"),
            (&[r#""x""#, r#""\ude00""#], "x\u{FFFD}"),
            (&[r#""a\ud83db""#, r#""\ude00""#], "a\u{FFFD}b\u{FFFD}"),
            (&[r#""a\ud83d""#], "a\u{FFFD}"),
            // Characters of the placeholder range stay unchanged.
            (&["\"\u{10F83D}\""], "\u{10F83D}"),
            (&[r#""\udbfe\udc3d\ud83d""#], "\u{10F83D}\u{FFFD}"),
            (&[r#""\ud83d""#, "\"\u{10FE00}\""], "\u{FFFD}\u{10FE00}"),
        ] {
            assert_eq!(increments(parts), expected, "{parts:?}");
        }
    }

    #[test]
    fn replaces_unjoined_surrogate_halves() {
        let part = repair_json_part(br#"{"\ud83d":["a\ud83d",{"b":"\ude00"}]}"#);
        assert_eq!(part.halves, SurrogateHalves::Present);
        let mut value = serde_json::from_slice(&part.text).unwrap();
        replace_halves(&mut value);
        assert_eq!(value, json!({"\u{FFFD}": ["a\u{FFFD}", {"b": "\u{FFFD}"}]}));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn repaired_strings_parse_and_increments_add_up(
            units in proptest::collection::vec(any::<u16>(), 0..12),
            cut in 0_usize..12,
            noise in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            // Without the placeholder range and NUL, with one escape for each unit.
            let units: Vec<_> = units.into_iter().filter(|unit| *unit != 0 && !is_own_high(*unit)).collect();
            let escaped = |units: &[u16]| -> String {
                let units: Vec<_> = units.iter().map(|unit| format!("\\u{unit:04x}")).collect();
                format!("\"{}\"", units.concat())
            };
            let (first, second) = units.split_at(cut.min(units.len()));
            let joined = increments(&[&escaped(first), &escaped(second)]);
            prop_assert_eq!(joined, String::from_utf16_lossy(&units));
            let repaired = repair_json_text(&noise);
            prop_assert!(std::str::from_utf8(&repaired).is_ok());
            prop_assert!(repaired.len() <= noise.len() * 6);
            let again = repair_json_text(&repaired);
            prop_assert_eq!(again.as_ref(), repaired.as_ref());
        }
    }
}
