//! Offloading of tool results that are too large for a model.

use serde_json::{Value, json};

/// Maximum size of a tool response.
pub(super) const ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of an inline result, as JSON text.
const INLINE_BYTES: usize = 256 * 1024;
/// Size of the preview of a larger result.
const PREVIEW_BYTES: usize = 16 * 1024;

/// A result in the form for the runner.
#[derive(Debug, PartialEq)]
pub enum SizedResult {
    /// Small enough to be returned unchanged.
    Inline(Value),
    /// Too large for a model: a preview for the runner, and the full text for an artifact.
    Large(OversizedResult),
}

/// Full text of a large result.
#[derive(Debug, PartialEq)]
pub struct OversizedResult {
    pub text: String,
    pub mime_type: &'static str,
}

impl OversizedResult {
    /// Preview for the runner. `artifact_id`: the artifact with the full text.
    pub fn preview(&self, artifact_id: Option<String>) -> Value {
        // A cut within a character would panic.
        let preview = &self.text[..self.text.floor_char_boundary(PREVIEW_BYTES)];
        let mut shown = json!({"truncated": true, "bytes": self.text.len(), "preview": preview});
        if let Some(id) = artifact_id {
            shown["artifact_id"] = Value::String(id);
        }
        shown
    }
}

/// Separates large results from small ones.
pub(super) fn size_result(result: Value) -> SizedResult {
    let (text, mime_type) = match result {
        Value::String(text) if text.len() > INLINE_BYTES => (text, "text/plain"),
        Value::String(_) => return SizedResult::Inline(result),
        other => {
            let text = other.to_string();
            if text.len() <= INLINE_BYTES {
                return SizedResult::Inline(other);
            }
            (text, "application/json")
        }
    };
    SizedResult::Large(OversizedResult { text, mime_type })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncates_large_results_at_character_boundaries() {
        for small in [
            json!({"a": "x".repeat(1000)}),
            json!("y".repeat(INLINE_BYTES)),
        ] {
            assert_eq!(size_result(small.clone()), SizedResult::Inline(small));
        }
        let text = format!("x{}", "ä".repeat(INLINE_BYTES));
        let SizedResult::Large(large) = size_result(Value::String(text.clone())) else {
            panic!("it is large")
        };
        assert_eq!((&large.text, large.mime_type), (&text, "text/plain"));
        let cut = large.preview(None);
        assert_eq!(cut["truncated"], true);
        assert_eq!(cut["bytes"], 2 * INLINE_BYTES + 1);
        assert!(cut.get("artifact_id").is_none());
        let preview = cut["preview"].as_str().unwrap();
        assert_eq!(
            preview.len(),
            PREVIEW_BYTES - 1,
            "one letter less, and none in half"
        );
        assert_eq!(large.preview(Some("a".to_owned()))["artifact_id"], "a");

        let list = json!(["z".repeat(INLINE_BYTES)]);
        let SizedResult::Large(large) = size_result(list.clone()) else {
            panic!("it is large")
        };
        assert_eq!(large.mime_type, "application/json");
        assert_eq!(serde_json::from_str::<Value>(&large.text).unwrap(), list);
    }
}
