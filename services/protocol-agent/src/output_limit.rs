//! Size limit of a result line. The gateway fails a run with a longer one.

use protocol::JsonObject;
use protocol::context::AgentRunContext;
use serde::Serialize;
use serde_json::{Value, json};

/// Line limit of a gateway that reports none, in bytes.
const LINE_BYTES: u64 = 256 * 1024;
/// Fraction of a line that is reserved for the members around the data.
const RESERVED: usize = 8;

/// Maximum bytes of JSON for the data of one result.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutputLimit(usize);

impl OutputLimit {
    /// Limit from the context of a run.
    pub(crate) fn of(context: &AgentRunContext) -> Self {
        let limits = context.runtime.metadata.get("limits");
        let limit = |name| limits?.get(name)?.as_u64().filter(|bytes| *bytes > 0);
        let limits = ["line_bytes", "event_bytes"].into_iter().filter_map(limit);
        let line = usize::try_from(limits.min().unwrap_or(LINE_BYTES)).unwrap_or(usize::MAX);
        Self(line - line / RESERVED)
    }

    /// Half of the limit.
    #[must_use]
    pub(crate) fn half(self) -> Self {
        Self(self.0 / 2)
    }

    /// True if the value fits.
    pub(crate) fn holds(self, value: &impl Serialize) -> bool {
        serde_json::to_vec(value).is_ok_and(|json| json.len() <= self.0)
    }

    /// Longest prefix of a text that fits, at least one character.
    pub(crate) fn beginning(self, text: &str) -> &str {
        let mut bytes = 0;
        let mut chars = text.char_indices();
        let over = chars.find(|(at, char)| {
            bytes += json_bytes(*char);
            // At least one character, or the caller would loop for ever.
            *at > 0 && bytes > self.0
        });
        &text[..over.map_or(text.len(), |(at, _)| at)]
    }

    /// The object, or a preview of it beyond half of the limit.
    pub(crate) fn within_limit(self, object: JsonObject) -> JsonObject {
        if self.half().holds(&object) {
            return object;
        }
        let text = serde_json::to_string(&object).unwrap_or_default();
        let preview = json!({
            "truncated": true, "reason": "limits.line_bytes", "original_bytes": text.len(),
            "preview": self.half().half().beginning(&text),
        });
        match preview {
            Value::Object(preview) => preview,
            _ => JsonObject::new(),
        }
    }
}

/// Bytes of a character in a JSON string.
fn json_bytes(char: char) -> usize {
    match char {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => char.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_beginnings_as_json() {
        let text = "a\"b\\c\nd\u{1}e\u{7f}äö€😀".repeat(3);
        for limit in 1..text.len() * 2 {
            let piece = OutputLimit(limit).beginning(&text);
            let bytes = json!(piece).to_string().len() - 2;
            assert!(
                bytes <= limit || piece.chars().count() == 1,
                "{limit} {piece}"
            );
        }
        assert_eq!(OutputLimit(9).beginning(""), "");
    }

    #[test]
    fn previews_objects_over_half_the_limit() {
        let small = JsonObject::from_iter([("a".to_owned(), json!(1))]);
        assert_eq!(OutputLimit(100).within_limit(small.clone()), small);
        let large = JsonObject::from_iter([("a".to_owned(), json!("x".repeat(500)))]);
        let within_limit = OutputLimit(400).within_limit(large);
        assert_eq!(within_limit["truncated"], true);
        assert!(
            OutputLimit(400).half().holds(&within_limit),
            "{within_limit:?}"
        );
    }
}
