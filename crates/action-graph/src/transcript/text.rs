//! Foreign text inside the transcript: it can neither end a turn nor reorder characters.

/// Direction marks, which make text look like something else.
fn is_bidi(letter: char) -> bool {
    matches!(letter, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text without carriage returns, NUL and direction marks; `<turn` and `</turn` are escaped.
pub fn clean(text: &str) -> String {
    let plain: String = text
        .chars()
        .filter(|&letter| letter != '\r' && letter != '\0' && !is_bidi(letter))
        .collect();
    // Most texts have no tag.
    if !plain.contains('<') {
        return plain;
    }
    let mut escaped = String::with_capacity(plain.len());
    for (index, part) in plain.split('<').enumerate() {
        if index > 0 {
            // Without case: a model reads `</TURN>` as the same tag.
            let name = part.strip_prefix('/').unwrap_or(part).as_bytes();
            let is_turn = name.len() >= 4 && name[..4].eq_ignore_ascii_case(b"turn");
            escaped.push_str(if is_turn { "&lt;" } else { "<" });
        }
        escaped.push_str(part);
    }
    escaped
}

/// Clean text in one line, trimmed.
pub fn one_line(text: &str) -> String {
    let text = clean(text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// One line for a position between back-ticks.
pub(super) fn name(text: &str) -> String {
    one_line(text).replace('`', "'")
}

/// A fence that no text inside can close: longer than its longest run of back-ticks.
pub(super) fn fence_of(text: &str) -> String {
    let (mut longest, mut run) = (0, 0);
    for byte in text.bytes() {
        run = if byte == b'`' { run + 1 } else { 0 };
        longest = longest.max(run);
    }
    "`".repeat((longest + 1).max(3))
}
