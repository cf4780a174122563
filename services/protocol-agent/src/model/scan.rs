//! Incremental extraction of an answer's message from streamed carrier arguments.

/// Scanner of the top level of one JSON object, character by character. It returns text of `message` once `kind` is
/// `answer`. It only previews: the complete output is validated at its end.
#[derive(Debug, Default)]
pub(crate) struct AnswerScan {
    depth: u32,
    /// JSON string that is being read, with its escapes.
    text: Option<String>,
    is_escaped: bool,
    /// Current key at the top level.
    key: Option<String>,
    /// The next text at the top level is a value.
    is_value: bool,
    kind: Option<String>,
    /// Text of the message that was not returned, with its escapes.
    waiting: String,
}

/// Maximum stored bytes of a key or a kind.
const SHORT: usize = 64;
/// Bytes of the longest escape: a pair of surrogates.
const ESCAPE: usize = 12;

impl AnswerScan {
    /// Scans the next piece of the arguments and returns new text of the message.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        for letter in piece.chars() {
            self.letter(letter);
        }
        let Some(kind) = self.kind.as_deref() else {
            return String::new();
        };
        // Messages of other kinds may be repaired or dropped; show none of them early.
        if !kind.trim().eq_ignore_ascii_case("answer") {
            self.waiting.clear();
            return String::new();
        }
        // The rest of an escape, or of a pair of surrogates, follows in the next piece.
        let escapes = self.waiting.rmatch_indices('\\').map(|(at, _)| at);
        let mut ends = [self.waiting.len()].into_iter().chain(escapes.take(2));
        let shown = ends.find_map(|end| Some((end, decoded(&self.waiting[..end])?)));
        let (end, text) = shown.unwrap_or((self.waiting.len(), String::new()));
        self.waiting.drain(..end);
        if self.waiting.len() > ESCAPE {
            // This is no JSON.
            self.waiting.clear();
        }
        text
    }

    fn letter(&mut self, letter: char) {
        if let Some(text) = &mut self.text {
            let is_message =
                self.depth == 1 && self.is_value && self.key.as_deref() == Some("message");
            if letter == '"' && !self.is_escaped {
                self.end_text();
                return;
            }
            self.is_escaped = letter == '\\' && !self.is_escaped;
            if is_message {
                self.waiting.push(letter);
            } else if text.len() < SHORT {
                // Longer texts are neither a relevant key nor a kind.
                text.push(letter);
            }
            return;
        }
        match letter {
            '"' => self.text = Some(String::new()),
            '{' | '[' => self.depth += 1,
            '}' | ']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 1 {
                    self.key = None;
                    self.is_value = false;
                }
            }
            ':' if self.depth == 1 => self.is_value = true,
            ',' if self.depth == 1 => {
                self.key = None;
                self.is_value = false;
            }
            _ => {}
        }
    }

    fn end_text(&mut self) {
        let text = decoded(&self.text.take().unwrap_or_default()).unwrap_or_default();
        if self.depth != 1 {
            return;
        }
        if !self.is_value {
            self.key = Some(text);
        } else if self.key.as_deref() == Some("kind") && self.kind.is_none() {
            self.kind = Some(text);
        }
    }
}

/// Text of a JSON string. `None` if an escape is incomplete.
fn decoded(text: &str) -> Option<String> {
    serde_json::from_str(&format!("\"{text}\"")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Text returned for arguments in pieces of this size.
    fn shown(arguments: &str, size: usize) -> String {
        let mut scan = AnswerScan::default();
        let letters: Vec<char> = arguments.chars().collect();
        let pieces = letters
            .chunks(size)
            .map(|piece| piece.iter().collect::<String>());
        pieces.map(|piece| scan.push(&piece)).collect()
    }

    #[test]
    fn shows_messages_of_answers_alone() {
        for (arguments, expected) in [
            (r#"{"kind": "answer", "message": "Hello"}"#, "Hello"),
            (r#"{"message": "late kind", "kind": "answer"}"#, "late kind"),
            (r#"{"kind": " Answer ", "message": "x"}"#, "x"),
            (r#"{"kind": "act", "message": "I look.", "calls": []}"#, ""),
            (r#"{"kind": "done", "message": "bye"}"#, ""),
            (r#"{"message": "no kind"}"#, ""),
            (
                r#"{"a": {"kind": "answer", "message": "inner"}, "kind": "answer", "message": "outer"}"#,
                "outer",
            ),
            (r#"{"a": ["message", "x"], "kind": "answer"}"#, ""),
            (
                r#"{"kind": "answer", "message": "a\n\"b\"\\ \u00e4 \ud83d\ude00"}"#,
                "a\n\"b\"\\ ä 😀",
            ),
            (r#"{"kind": "answer", "message": "cut o"#, "cut o"),
        ] {
            for size in [1, 2, 7, 100] {
                assert_eq!(shown(arguments, size), expected, "{arguments} in {size}");
            }
        }
    }
}
