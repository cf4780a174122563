//! JSON helpers for platform responses.

use serde_json::Value;

/// Parses a text as JSON. Escapes of unpaired surrogates, which no Rust text can hold, become U+FFFD.
pub fn parse(text: &str) -> Option<Value> {
    // Scan for surrogates only after a failed parse: valid texts cost one pass.
    let parsed = serde_json::from_str(text).ok();
    parsed.or_else(|| serde_json::from_str(&without_lone_surrogates(text)?).ok())
}

fn without_lone_surrogates(text: &str) -> Option<String> {
    let (mut repaired, mut rest) = (String::with_capacity(text.len()), text);
    let mut found = false;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        repaired.push_str(before);
        let length = match unit(escape) {
            // A high surrogate followed by a low one is valid and is copied as it is.
            Some(0xD800..=0xDBFF)
                if matches!(escape.get(6..).and_then(unit), Some(0xDC00..=0xDFFF)) =>
            {
                12
            }
            Some(0xD800..=0xDFFF) => {
                found = true;
                repaired.push('\u{FFFD}');
                rest = &escape[6..];
                continue;
            }
            Some(_) => 6,
            // Skip the escaped character too, so that the second backslash of `\\\\` starts no escape.
            None => 1 + escape.chars().nth(1).map_or(0, char::len_utf8),
        };
        let (copied, behind) = escape.split_at(length);
        repaired.push_str(copied);
        rest = behind;
    }
    repaired.push_str(rest);
    // Without a replacement a second parse would fail in the same way.
    found.then_some(repaired)
}

/// The code unit of an escape `\uXXXX` at the beginning of the text.
fn unit(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    u16::from_str_radix(digits, 16).ok()
}

/// A text, or the JSON of another value; `None` for `null`.
pub fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        value => Some(value.to_string()),
    }
}

/// A text that is not empty.
pub fn filled(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.trim().is_empty())
}

/// The JSON in a text; other texts and values stay.
pub fn parsed(value: &Value) -> Value {
    let parsed = value.as_str().and_then(parse);
    parsed.unwrap_or_else(|| value.clone())
}

/// A value as an object; a value that is no object is stored under `value`.
pub fn object(value: Value) -> protocol::JsonObject {
    match value {
        Value::Object(object) => object,
        Value::Null => protocol::JsonObject::new(),
        value => protocol::JsonObject::from_iter([("value".to_owned(), value)]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lone_surrogates_are_replaced() {
        for (text, value) in [
            (r#"{"a":"\ud83d\ude00"}"#, json!({"a": "😀"})),
            (
                r#"["\ud83d", "\\ud83d", "\ud83d\ude00\ude00"]"#,
                json!(["\u{FFFD}", "\\ud83d", "😀\u{FFFD}"]),
            ),
            (r#""\ud83dx\ud83d""#, json!("\u{FFFD}x\u{FFFD}")),
        ] {
            assert_eq!(parse(text), Some(value), "{text}");
        }
        for text in ["", "\\", "\"\\ud8", "{\"a\":\"\\ud83d", "\"\\ü\\ud800"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
