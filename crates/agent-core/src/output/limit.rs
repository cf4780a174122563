//! Size limit of results. The gateway fails a run that sends a longer line.

use protocol::JsonObject;
use protocol::context::AgentRunContext;
use serde::Serialize;
use serde_json::json;

/// Assumed limit in bytes if the gateway sends none.
const LINE_BYTES: u64 = 256 * 1024;
/// Divisor for the part of a line that is reserved for the envelope around the data.
const ENVELOPE: usize = 8;

/// Limit of the data of one result, in bytes of JSON.
#[derive(Clone, Copy, Debug)]
pub struct LineLimit(usize);

impl LineLimit {
    /// Limit from the context's run limits.
    pub fn of(context: &AgentRunContext) -> Self {
        let limits = context.runtime.metadata.get("limits");
        let limit = |name| limits?.get(name)?.as_u64().filter(|bytes| *bytes > 0);
        // The smaller of both limits: a result is one line and one event.
        let limits = ["line_bytes", "event_bytes"].into_iter().filter_map(limit);
        let line = usize::try_from(limits.min().unwrap_or(LINE_BYTES)).unwrap_or(usize::MAX);
        Self(line - line / ENVELOPE)
    }

    /// Limit of this many bytes.
    pub fn of_bytes(bytes: usize) -> Self {
        Self(bytes)
    }

    /// The limit in bytes.
    pub fn bytes(self) -> usize {
        self.0
    }

    /// Half of the limit, for data with two parts.
    #[must_use]
    pub fn half(self) -> Self {
        Self(self.0 / 2)
    }

    /// True if the serialised value fits.
    pub fn holds(self, value: &impl Serialize) -> bool {
        serde_json::to_vec(value).is_ok_and(|json| json.len() <= self.0)
    }

    /// Longest prefix of a text that fits; at least one character.
    pub fn beginning(self, text: &str) -> &str {
        let mut bytes = 0;
        let mut chars = text.char_indices();
        let over = chars.find(|(at, char)| {
            bytes += char_bytes(*char);
            // One character always passes: an empty prefix would loop forever in the writer.
            *at > 0 && bytes > self.0
        });
        &text[..over.map_or(text.len(), |(at, _)| at)]
    }

    /// Pieces of a text that fit; at least one character each.
    pub fn pieces(self, text: &str) -> impl Iterator<Item = &str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let (piece, after) = rest.split_at(self.beginning(rest).len());
            rest = after;
            (!piece.is_empty()).then_some(piece)
        })
    }

    /// Object in place of a value that does not fit, with the value's size and the beginning of its JSON.
    pub fn preview(self, value: &impl Serialize) -> JsonObject {
        let json = serde_json::to_string(value).unwrap_or_default();
        JsonObject::from_iter([
            ("truncated".to_owned(), json!(true)),
            ("reason".to_owned(), json!("limits.line_bytes")),
            ("original_bytes".to_owned(), json!(json.len())),
            // The other half is for the remaining fields of the payload.
            ("preview".to_owned(), json!(self.half().beginning(&json))),
        ])
    }
}

/// Bytes of a text inside a JSON string.
pub fn json_bytes(text: &str) -> usize {
    text.chars().map(char_bytes).sum()
}

fn char_bytes(char: char) -> usize {
    match char {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => char.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use runner_kit::testing::{offline_access, run_request};
    use serde_json::Value;

    use super::*;

    fn line_limit(limits: &Value) -> usize {
        let request = run_request("plugin:a/b/c", "hi", &offline_access()).unwrap();
        let mut context = request.context;
        let metadata = json!({"limits": limits});
        context.runtime.metadata = metadata.as_object().unwrap().clone();
        LineLimit::of(&context).bytes()
    }

    #[test]
    fn reserves_envelope_bytes_of_line_limit() {
        for (limits, bytes) in [
            (json!({"line_bytes": 8_000, "event_bytes": 9_000}), 7_000),
            (json!({"line_bytes": 9_000, "event_bytes": 8_000}), 7_000),
            (json!({}), 224 * 1024),
            (json!({"line_bytes": "x"}), 224 * 1024),
            (json!({"line_bytes": 0}), 224 * 1024),
            (json!(7), 224 * 1024),
        ] {
            assert_eq!(line_limit(&limits), bytes, "{limits}");
        }
    }

    #[test]
    fn measures_text_prefix_as_json() {
        let text = "a\"b\\c\nd\u{1}e\u{7f}äö€😀".repeat(3);
        for limit in 1..text.len() * 2 {
            let piece = LineLimit(limit).beginning(&text);
            let json = json!(piece).to_string().len() - 2;
            assert_eq!(json, json_bytes(piece));
            assert!(
                json <= limit || piece.chars().count() == 1,
                "{limit} {piece}"
            );
            let next = text[piece.len()..].chars().next();
            assert!(
                next.is_none_or(|next| json + char_bytes(next) > limit),
                "{limit}"
            );
            assert_eq!(LineLimit(limit).pieces(&text).collect::<String>(), text);
        }
        assert_eq!(LineLimit(0).beginning("ab"), "a");
        assert_eq!(LineLimit(9).beginning(""), "");
    }

    #[test]
    fn previews_fit_the_limit() {
        let preview = LineLimit(200).preview(&json!({"a": "x".repeat(500)}));
        assert_eq!(preview["original_bytes"], 508);
        assert!(LineLimit(200).holds(&preview), "{preview:?}");
    }
}
