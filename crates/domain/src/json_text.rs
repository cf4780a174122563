//! Checks JSON text from any peer. Rejects content that some parsers or databases reject, and content that costs
//! far more memory than bandwidth.
//!
//! One pass without copies and recursion, before every parser that builds values.

use memchr::memchr2;

/// Maximum nesting depth.
pub const DEPTH: usize = 64;
/// Maximum number of values in one document. In memory, a value takes dozens of times its two bytes on the wire.
pub const VALUES: usize = 100_000;

/// Bytes up to which a number without exponent needs no parsing.
const SHORT_NUMBER: usize = 300;

/// Reason to reject a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JsonTextFault {
    #[error("is nested deeper than 64 levels")]
    TooDeep,
    #[error("holds more than 100,000 values")]
    TooManyValues,
    #[error("holds the character U+0000")]
    Nul,
    #[error("holds half of a surrogate pair")]
    LoneSurrogate,
    #[error("holds a number outside the range of a 64-bit float")]
    HugeNumber,
}

/// Checks valid JSON for these faults. Invalid JSON may pass; the parser rejects it.
pub fn check_json_text(text: &[u8]) -> Result<(), JsonTextFault> {
    let (mut depth, mut values, mut at) = (0_usize, 0_usize, 0_usize);
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' => {
                // Strings end their own loop, so their content never counts as structure.
                at = check_string(text, at + 1)?;
                continue;
            }
            b'{' | b'[' => {
                depth += 1;
                values += 1;
                if depth > DEPTH {
                    return Err(JsonTextFault::TooDeep);
                }
            }
            // More closing than opening brackets are invalid; the parser reports them.
            b'}' | b']' => depth = depth.saturating_sub(1),
            // Counts values by separators: one less than the values of each object or list.
            b',' => values += 1,
            b'0'..=b'9' => {
                at = check_number(text, at)?;
                continue;
            }
            _ => {}
        }
        if values > VALUES {
            return Err(JsonTextFault::TooManyValues);
        }
        at += 1;
    }
    Ok(())
}

/// Checks a string from after its opening quote to after its closing quote.
fn check_string(text: &[u8], mut at: usize) -> Result<usize, JsonTextFault> {
    // True after a high surrogate, until its low surrogate.
    let mut waits = false;
    loop {
        // `memchr` skips plain text quickly, but a waiting half must meet the very next character.
        if !waits {
            let rest = text.get(at..).unwrap_or_default();
            at += memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        }
        let half = match text.get(at) {
            None => return Ok(at),
            Some(b'"') if waits => return Err(JsonTextFault::LoneSurrogate),
            Some(b'"') => return Ok(at + 1),
            Some(b'\\') => {
                let unit = code_unit(text, at);
                // A short escape is two bytes, so that `\"` does not end the string.
                at += if unit.is_some() { 6 } else { 2 };
                unit
            }
            Some(_) => {
                at += 1;
                None
            }
        };
        waits = match (waits, half) {
            (_, Some(0)) => return Err(JsonTextFault::Nul),
            (false, Some(0xD800..=0xDBFF)) => true,
            (true, Some(0xDC00..=0xDFFF)) => false,
            (true, _) | (false, Some(0xDC00..=0xDFFF)) => return Err(JsonTextFault::LoneSurrogate),
            (false, _) => false,
        };
    }
}

/// Returns the code unit of `\uXXXX`.
pub(crate) fn code_unit(text: &[u8], at: usize) -> Option<u16> {
    let digits = text.get(at..at + 6)?.strip_prefix(b"\\u")?;
    // `from_str_radix` also takes a sign, which JSON does not.
    let digits = std::str::from_utf8(digits).ok()?;
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u16::from_str_radix(digits, 16).ok().filter(|_| is_hex)
}

/// Checks a number and returns the offset after it.
fn check_number(text: &[u8], at: usize) -> Result<usize, JsonTextFault> {
    let is_of_number =
        |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'+' | b'-');
    let length = text[at..]
        .iter()
        .take_while(|byte| is_of_number(byte))
        .count();
    let number = &text[at..at + length];
    // Only an exponent or hundreds of digits can overflow, so other numbers skip the slow parse.
    if length > SHORT_NUMBER || number.iter().any(|byte| matches!(byte, b'e' | b'E')) {
        let value = std::str::from_utf8(number)
            .ok()
            .and_then(|text| text.parse::<f64>().ok());
        // Parsers disagree on such a number: an error, infinity or null.
        if value.is_some_and(f64::is_infinite) {
            return Err(JsonTextFault::HugeNumber);
        }
    }
    Ok(at + length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn check(text: &str, expected: Result<(), JsonTextFault>) {
        assert_eq!(check_json_text(text.as_bytes()), expected, "{text:.80}");
    }

    #[test]
    fn rejects_json_that_parsers_or_databases_reject() {
        use JsonTextFault::*;
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        for (text, fault) in [
            (nested(65).as_str(), TooDeep),
            (&nested(100_000), TooDeep),
            (&"{\"a\":".repeat(65), TooDeep),
            (&format!("[{}0]", "0,".repeat(VALUES)), TooManyValues),
            (
                &format!("[{}0]", "[],".repeat(VALUES / 2 + 1)),
                TooManyValues,
            ),
            (r#"{"a":"\u0000"}"#, Nul),
            (r#"{"\u0000":1}"#, Nul),
            (r#""\\\u0000""#, Nul),
            (r#""\ud800""#, LoneSurrogate),
            (r#""\uD83C x \uDF89""#, LoneSurrogate),
            (r#""\udf89\ud83c""#, LoneSurrogate),
            (r#""\ud83c\ud83c\udf89""#, LoneSurrogate),
            (r#""\ud83c\n""#, LoneSurrogate),
            ("1e309", HugeNumber),
            ("[-1E+999]", HugeNumber),
            (&"9".repeat(400), HugeNumber),
            ("[1e99999999999999999999]", HugeNumber),
        ] {
            check(text, Err(fault));
        }
        for text in [
            nested(64).as_str(),
            &format!("[{}0]", "0,".repeat(VALUES - 1)),
            r#""\\u0000 \\ud800""#,
            r#""\ud83c\udf89 \u00e9 \" \/""#,
            &format!("\"{}\"", "[{,1e999".repeat(VALUES)),
            "[1e308, -1.5E-400, 18446744073709551616]",
            &format!("0.{}", "1".repeat(400)),
            "",
            "\"open",
            "\"open\\",
            "\"\\u12",
            "nope",
        ] {
            check(text, Ok(()));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn accepts_own_output_and_only_parseable_json(
            text in "[\\[\\]{}\",:0-9eE+.\\-a\\\\u dD8fFc]{0,40}",
            any in ".{0,20}",
        ) {
            let ours = Value::String(any.replace('\0', "")).to_string();
            prop_assert_eq!(check_json_text(ours.as_bytes()), Ok(()));
            // The lazy parser accepts more than the value parser. Both accept what passes here.
            let lazy = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
            if lazy && check_json_text(text.as_bytes()).is_ok() {
                prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{}", text);
            }
        }
    }
}
