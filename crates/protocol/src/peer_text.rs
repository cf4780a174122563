//! Sanitizes text of peers (manifests, endpoints, providers, tool servers) for reasons: bounded, one line, no
//! control characters. Reasons are stored, logged, sent in responses and printed on terminals.

/// Maximum characters of one text, including escapes and the truncation mark.
pub const MAX_PEER_TEXT_CHARS: usize = 200;

/// Escapes the text as `escape_debug` does, except for quotes, and truncates it.
pub fn shown(text: &str) -> String {
    let mut shown = String::new();
    // `escape_debug` also escapes line breaks, terminal sequences and direction marks.
    let mut escaped = text.escape_debug().peekable();
    let mut count = 0;
    while let Some(letter) = escaped.next() {
        // An escape is one unit: a cut within it would leave a lone backslash.
        let mut pair = [Some(letter), None];
        if letter == '\\' {
            let next = escaped.next();
            // Quotes stay readable: the text is never put between quotes.
            let is_quote = matches!(next, Some('\'' | '"'));
            pair = if is_quote {
                [next, None]
            } else {
                [Some(letter), next]
            };
        }
        let pair = pair.into_iter().flatten();
        // One character is reserved for the truncation mark if any text follows.
        let more = usize::from(escaped.peek().is_some());
        count += pair.clone().count();
        if count + more > MAX_PEER_TEXT_CHARS {
            shown.push('…');
            break;
        }
        shown.extend(pair);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_truncates_peer_text() {
        for (text, expected) in [
            ("plain, it's \"quoted\"", "plain, it's \"quoted\""),
            ("a\u{1b}[31m\r\nb", "a\\u{1b}[31m\\r\\nb"),
            ("\u{9b}x\u{200b}\u{202e}", "\\u{9b}x\\u{200b}\\u{202e}"),
            ("back\\slash 你好 é", "back\\\\slash 你好 é"),
            ("", ""),
        ] {
            assert_eq!(shown(text), expected);
        }
        assert_eq!(shown(&"x".repeat(200)), "x".repeat(200));
        let long = "x".repeat(199) + "…";
        assert_eq!(shown(&"x".repeat(3_000_000)), long);
        assert_eq!(shown(&"x".repeat(201)), long);
        for text in ["\u{1b}", "\\", "é", "\n"] {
            let shown = shown(&text.repeat(1000));
            assert!(shown.chars().count() <= MAX_PEER_TEXT_CHARS, "{shown}");
            assert!(shown.ends_with('…'));
        }
    }
}
