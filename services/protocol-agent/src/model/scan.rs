//! Incremental extraction of an answer's message from streamed carrier arguments.

/// Scanner of the top level of one JSON object, character by character. It returns text of `message` once `kind` is
/// `answer`. It only previews: the complete output is validated at its end.
#[derive(Debug, Default)]
pub(crate) struct AnswerScan {
    depth: u32,
    text: Option<Text>,
    /// Current key at the top level.
    key: Option<String>,
    /// The next text at the top level is a value.
    is_value: bool,
    kind: Option<String>,
    /// Text of the message before the kind is read.
    waiting: String,
}

/// JSON string that is being read.
#[derive(Debug, Default)]
struct Text {
    read: String,
    escape: Option<String>,
    /// High surrogate of a pair.
    high: Option<u32>,
}

/// Maximum stored bytes of a key or a kind.
const SHORT: usize = 64;

impl AnswerScan {
    /// Scans the next piece of the arguments and returns new text of the message.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        for letter in piece.chars() {
            self.letter(letter);
        }
        match self.kind.as_deref().map(str::trim) {
            Some(kind) if kind.eq_ignore_ascii_case("answer") => std::mem::take(&mut self.waiting),
            // Messages of other kinds may be repaired or dropped; show none of them early.
            Some(_) => {
                self.waiting.clear();
                String::new()
            }
            None => String::new(),
        }
    }

    fn letter(&mut self, letter: char) {
        if let Some(text) = &mut self.text {
            let is_message =
                self.depth == 1 && self.is_value && self.key.as_deref() == Some("message");
            match text.letter(letter) {
                JsonScanState::Char(read) if is_message => self.waiting.push(read),
                // Longer texts are neither a relevant key nor a kind.
                JsonScanState::Char(read) if text.read.len() < SHORT => text.read.push(read),
                JsonScanState::Char(_) | JsonScanState::Nothing => {}
                JsonScanState::End => self.end_text(),
            }
            return;
        }
        match letter {
            '"' => self.text = Some(Text::default()),
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
        let text = self.text.take().unwrap_or_default().read;
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

enum JsonScanState {
    Char(char),
    Nothing,
    End,
}

impl Text {
    fn letter(&mut self, letter: char) -> JsonScanState {
        let Some(escape) = &mut self.escape else {
            return match letter {
                '"' => JsonScanState::End,
                '\\' => {
                    self.escape = Some(String::new());
                    JsonScanState::Nothing
                }
                other => JsonScanState::Char(other),
            };
        };
        escape.push(letter);
        if let Some(digits) = escape.strip_prefix('u') {
            if digits.len() < 4 {
                return JsonScanState::Nothing;
            }
            let code = u32::from_str_radix(digits, 16).unwrap_or(0xfffd);
            self.escape = None;
            return self.code(code);
        }
        self.escape = None;
        JsonScanState::Char(match letter {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            other => other,
        })
    }

    fn code(&mut self, code: u32) -> JsonScanState {
        // JSON escapes characters beyond U+FFFF as a pair of surrogates.
        if let (Some(high), 0xdc00..=0xdfff) = (self.high.take(), code) {
            let code_point = 0x1_0000 + ((high - 0xd800) << 10) + (code - 0xdc00);
            return JsonScanState::Char(char::from_u32(code_point).unwrap_or('\u{fffd}'));
        }
        if (0xd800..=0xdbff).contains(&code) {
            self.high = Some(code);
            return JsonScanState::Nothing;
        }
        JsonScanState::Char(char::from_u32(code).unwrap_or('\u{fffd}'))
    }
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
