//! Offloading of tool results that are too large for a model.

use serde_json::{Value, json};

/// Maximum size of an inline result, as JSON text.
const WHOLE_BYTES: usize = 256 * 1024;
/// Size of the preview of a larger result.
const PREVIEW_BYTES: usize = 16 * 1024;

/// A result in the form for the runner.
#[derive(Debug, PartialEq)]
pub enum HandedOver {
    /// Unchanged.
    Whole(Value),
    /// Too large for a model: a preview for the runner, and the full text for an artifact.
    Large(LargeResult),
}

/// Full text of a large result.
#[derive(Debug, PartialEq)]
pub struct LargeResult {
    pub text: String,
    pub mime_type: &'static str,
}

impl LargeResult {
    /// Preview for the runner. `artifact_id`: the artifact with the full text.
    pub fn preview(&self, artifact_id: Option<String>) -> Value {
        let preview = &self.text[..self.text.floor_char_boundary(PREVIEW_BYTES)];
        let mut shown = json!({"truncated": true, "bytes": self.text.len(), "preview": preview});
        if let Some(id) = artifact_id {
            shown["artifact_id"] = Value::String(id);
        }
        shown
    }
}

/// Separates large results from small ones.
pub(super) fn keep_large(result: Value) -> HandedOver {
    let (text, mime_type) = match result {
        Value::String(text) if text.len() > WHOLE_BYTES => (text, "text/plain"),
        Value::String(_) => return HandedOver::Whole(result),
        other => {
            let text = other.to_string();
            if text.len() <= WHOLE_BYTES {
                return HandedOver::Whole(other);
            }
            (text, "application/json")
        }
    };
    HandedOver::Large(LargeResult { text, mime_type })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_result_is_cut_between_letters_and_says_so() {
        for whole in [
            json!({"a": "x".repeat(1000)}),
            json!("y".repeat(WHOLE_BYTES)),
        ] {
            assert_eq!(keep_large(whole.clone()), HandedOver::Whole(whole));
        }
        let text = format!("x{}", "ä".repeat(WHOLE_BYTES));
        let HandedOver::Large(large) = keep_large(Value::String(text.clone())) else {
            panic!("it is large")
        };
        assert_eq!((&large.text, large.mime_type), (&text, "text/plain"));
        let cut = large.preview(None);
        assert_eq!(cut["truncated"], true);
        assert_eq!(cut["bytes"], 2 * WHOLE_BYTES + 1);
        assert!(cut.get("artifact_id").is_none());
        let preview = cut["preview"].as_str().unwrap();
        assert_eq!(
            preview.len(),
            PREVIEW_BYTES - 1,
            "one letter less, and none in half"
        );
        assert_eq!(large.preview(Some("a".to_owned()))["artifact_id"], "a");

        let list = json!(["z".repeat(WHOLE_BYTES)]);
        let HandedOver::Large(large) = keep_large(list.clone()) else {
            panic!("it is large")
        };
        assert_eq!(large.mime_type, "application/json");
        assert_eq!(serde_json::from_str::<Value>(&large.text).unwrap(), list);
    }
}
