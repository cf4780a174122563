//! Size limit of results. The gateway fails a run that sends a longer line.

use protocol::context::AgentRunContext;
use serde::Serialize;
use serde_json::Value;

/// Assumed limit when the gateway sends none.
const LINE_BYTES: u64 = 256 * 1024;
/// Divisor for the part of a line that is reserved for the envelope around the data.
const AROUND: usize = 8;

/// Limit of the data of one result, in bytes of JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineLimit(usize);

impl LineLimit {
    /// Limit from the context's run limits.
    pub(crate) fn of(context: &AgentRunContext) -> Self {
        let limits = context.runtime.metadata.get("limits");
        let limit_of = |name| limits?.get(name)?.as_u64().filter(|bytes| *bytes > 0);
        let bytes = ["line_bytes", "event_bytes"]
            .into_iter()
            .filter_map(limit_of);
        // The smaller of both limits: a result is one line and one event.
        let line = usize::try_from(bytes.min().unwrap_or(LINE_BYTES)).unwrap_or(usize::MAX);
        Self(line - line / AROUND)
    }

    /// Half of the limit, for data with two parts.
    #[must_use]
    pub(crate) fn half(self) -> Self {
        Self(self.0 / 2)
    }

    /// True when the serialised value fits.
    pub(crate) fn holds(self, value: &impl Serialize) -> bool {
        serde_json::to_vec(value).is_ok_and(|json| json.len() <= self.0)
    }

    /// Longest prefix of a text that fits; at least one character.
    pub(crate) fn beginning(self, text: &str) -> &str {
        let mut bytes = 0;
        let mut chars = text.char_indices();
        let over = chars.find(|(at, char)| {
            bytes += bytes_of(*char);
            // One character always passes: an empty prefix would loop forever in the writer.
            *at > 0 && bytes > self.0
        });
        &text[..over.map_or(text.len(), |(at, _)| at)]
    }

    /// Prefix of a value that does not fit, for display to users.
    pub(crate) fn preview(self, kind: &str, value: &impl Serialize) -> Value {
        let json = serde_json::to_string(value).unwrap_or_default();
        serde_json::json!({
            "type": kind, "truncated": true, "reason": "limits.line_bytes",
            // The other half is for the remaining fields of the payload.
            "original_bytes": json.len(), "preview": self.half().beginning(&json),
        })
    }
}

/// Bytes of a character inside a JSON string.
fn bytes_of(char: char) -> usize {
    match char {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => char.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::context;

    fn line_limit(limits: &Value) -> usize {
        let mut context = context("hi", &json!({}));
        let metadata = json!({"limits": limits});
        context.runtime.metadata = metadata.as_object().unwrap().clone();
        LineLimit::of(&context).0
    }

    #[test]
    fn reserves_envelope_bytes_of_line_limit() {
        assert_eq!(
            line_limit(&json!({"line_bytes": 8_000, "event_bytes": 9_000})),
            7_000
        );
        assert_eq!(
            line_limit(&json!({"line_bytes": 9_000, "event_bytes": 8_000})),
            7_000
        );
        for unknown in [
            json!({}),
            json!({"line_bytes": "x"}),
            json!({"line_bytes": 0}),
            json!(7),
        ] {
            assert_eq!(line_limit(&unknown), 224 * 1024);
        }
    }

    #[test]
    fn measures_text_prefix_as_json() {
        let text = "a\"b\\c\nd\u{1}e\u{7f}äö€😀".repeat(3);
        for limit in 1..text.len() * 2 {
            let piece = LineLimit(limit).beginning(&text);
            let json = json!(piece).to_string().len() - 2;
            assert!(
                json <= limit || piece.chars().count() == 1,
                "{limit} {piece}"
            );
            let next = text[piece.len()..].chars().next();
            assert!(
                next.is_none_or(|next| json + bytes_of(next) > limit),
                "{limit}"
            );
        }
        assert_eq!(LineLimit(0).beginning("ab"), "a");
        assert_eq!(LineLimit(9).beginning(""), "");
    }
}
