//! Results that are too large for a model.

use serde_json::{Value, json};

/// The largest result that is handed over whole, as JSON text.
const WHOLE_BYTES: usize = 256 * 1024;
/// Of a larger one, so much is shown.
const PREVIEW_BYTES: usize = 16 * 1024;

/// A result as it is handed over: whole, or its beginning.
pub(super) fn keep_large(result: Value) -> Value {
    let text = match &result {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    if text.len() <= WHOLE_BYTES {
        return result;
    }
    let preview = &text[..text.floor_char_boundary(PREVIEW_BYTES)];
    json!({"truncated": true, "bytes": text.len(), "preview": preview})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_result_is_cut_between_letters_and_says_so() {
        let whole = json!({"a": "x".repeat(1000)});
        assert_eq!(keep_large(whole.clone()), whole);
        let text = "ä".repeat(WHOLE_BYTES);
        let cut = keep_large(Value::String(format!("x{text}")));
        assert_eq!(cut["truncated"], true);
        assert_eq!(cut["bytes"], 2 * WHOLE_BYTES + 1);
        let preview = cut["preview"].as_str().unwrap();
        assert_eq!(
            preview.len(),
            PREVIEW_BYTES - 1,
            "one letter less, and none in half"
        );
    }
}
