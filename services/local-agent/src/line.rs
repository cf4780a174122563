//! How long a result may be. The gateway ends a run that sends a longer one.

use protocol::context::AgentRunContext;
use serde::Serialize;
use serde_json::Value;

/// A line of a gateway that does not tell its bounds.
const LINE_BYTES: u64 = 256 * 1024;
/// The part of a line that is left to what stands around the data of a result.
const AROUND: usize = 8;

/// What the data of one result may weigh, in bytes of JSON.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room(usize);

impl Room {
    /// As the limits of the run tell it.
    pub(crate) fn of(context: &AgentRunContext) -> Self {
        let limits = context.runtime.metadata.get("limits");
        let told = |name| limits?.get(name)?.as_u64().filter(|bytes| *bytes > 0);
        let told = ["line_bytes", "event_bytes"].into_iter().filter_map(told);
        let line = usize::try_from(told.min().unwrap_or(LINE_BYTES)).unwrap_or(usize::MAX);
        Self(line - line / AROUND)
    }

    /// The room of one part of two.
    #[must_use]
    pub(crate) fn half(self) -> Self {
        Self(self.0 / 2)
    }

    /// Whether all of it finds room.
    pub(crate) fn holds(self, value: &impl Serialize) -> bool {
        serde_json::to_vec(value).is_ok_and(|json| json.len() <= self.0)
    }

    /// The beginning of a text that finds room; one character at least.
    pub(crate) fn beginning(self, text: &str) -> &str {
        let mut bytes = 0;
        let mut chars = text.char_indices();
        let over = chars.find(|(at, char)| {
            bytes += bytes_of(*char);
            *at > 0 && bytes > self.0
        });
        &text[..over.map_or(text.len(), |(at, _)| at)]
    }

    /// The beginning of a value that finds no room, as users are shown it.
    pub(crate) fn preview(self, kind: &str, value: &impl Serialize) -> Value {
        let whole = serde_json::to_string(value).unwrap_or_default();
        serde_json::json!({
            "type": kind, "truncated": true, "reason": "limits.line_bytes",
            "original_bytes": whole.len(), "preview": self.half().beginning(&whole),
        })
    }
}

/// A character as it stands in a text of JSON.
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

    fn room(limits: &Value) -> usize {
        let mut context = context("hi", &json!({}));
        let told = json!({"limits": limits});
        context.runtime.metadata = told.as_object().unwrap().clone();
        Room::of(&context).0
    }

    #[test]
    fn a_line_is_as_long_as_the_gateway_tells_and_has_more_on_it_than_data() {
        assert_eq!(
            room(&json!({"line_bytes": 8_000, "event_bytes": 9_000})),
            7_000
        );
        assert_eq!(
            room(&json!({"line_bytes": 9_000, "event_bytes": 8_000})),
            7_000
        );
        for unknown in [
            json!({}),
            json!({"line_bytes": "x"}),
            json!({"line_bytes": 0}),
            json!(7),
        ] {
            assert_eq!(room(&unknown), 224 * 1024);
        }
    }

    #[test]
    fn a_beginning_is_measured_as_json() {
        let text = "a\"b\\c\nd\u{1}e\u{7f}äö€😀".repeat(3);
        for most in 1..text.len() * 2 {
            let piece = Room(most).beginning(&text);
            let json = json!(piece).to_string().len() - 2;
            assert!(json <= most || piece.chars().count() == 1, "{most} {piece}");
            let next = text[piece.len()..].chars().next();
            assert!(
                next.is_none_or(|next| json + bytes_of(next) > most),
                "{most}"
            );
        }
        assert_eq!(Room(0).beginning("ab"), "a");
        assert_eq!(Room(9).beginning(""), "");
    }
}
