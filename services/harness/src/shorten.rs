//! Shortened texts and values for results and failures.

use serde_json::{Value, json};

/// Cuts a text to at most `bytes`, at a character boundary, with an ellipsis.
pub(crate) fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!(
        "{}…",
        &text[..text.floor_char_boundary(bytes.saturating_sub('…'.len_utf8()))]
    )
}

/// The value if its JSON has at most `bytes`, otherwise an object with its size and beginning.
pub(crate) fn bounded(value: &Value, bytes: usize) -> Value {
    let text = value.to_string();
    if text.len() <= bytes {
        return value.clone();
    }
    json!({"truncated": true, "bytes": text.len(), "preview": cut(&text, bytes / 2)})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncates_at_character_boundary() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("ääää", 6), "ä…");
        assert_eq!(bounded(&json!("abcdefgh"), 20), json!("abcdefgh"));
        assert_eq!(bounded(&json!("abcdefgh"), 8)["truncated"], true);
    }
}
