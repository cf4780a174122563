//! Media type of a content, by its first bytes.

use domain::artifact::{DetectedType, media_type as judged};
use infer::MatcherType;

/// Bytes that are examined.
pub(super) const HEAD_BYTES: usize = 8 * 1024;

/// Media type of a content with this head. `declared` wins unless the head contradicts it.
pub(super) fn media_type(declared: Option<&str>, head: &[u8]) -> String {
    let head = &head[..head.len().min(HEAD_BYTES)];
    let is_text = is_text(head);
    // A text wins over a signature of two letters, with which it may begin by chance.
    let found = infer::get(head).filter(|found| !is_text || may_be_text(found.matcher_type()));
    let shown = match &found {
        Some(found) => DetectedType::Type(found.mime_type()),
        None if is_text => DetectedType::Text,
        None => DetectedType::Unknown,
    };
    let has_signature = |kind: &str| !kind.starts_with("text/") && infer::is_mime_supported(kind);
    judged(declared, shown, has_signature)
}

/// Some signatures are two letters, with which a text may begin as well.
fn may_be_text(matcher: MatcherType) -> bool {
    matches!(
        matcher,
        MatcherType::Text | MatcherType::Doc | MatcherType::Archive | MatcherType::Custom
    )
}

/// True for UTF-8 without control characters. The last character may be incomplete.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // The head ends within a character, because it is cut at a byte.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&head[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return false,
    };
    let is_bad = |letter: char| {
        letter.is_control() && !matches!(letter, '\n' | '\r' | '\t' | '\u{c}' | '\u{1b}')
    };
    !text.contains(is_bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detects_media_type_by_content() {
        let check = |declared, head: &[u8], expected| {
            assert_eq!(media_type(declared, head), expected, "{declared:?}");
        };
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR";
        check(Some("image/jpeg"), png, "image/png");
        check(Some("text/html"), png, "image/png");
        check(None, b"%PDF-1.7\n%\xe2\xe3", "application/pdf");
        check(Some("application/pdf"), b"not one", "text/plain");
        check(Some("text/csv"), b"a;b\n1;2\n", "text/csv");
        check(Some("application/json"), b"{\"a\":1}", "application/json");
        check(None, "größer".as_bytes(), "text/plain");
        check(None, &"größer".as_bytes()[..3], "text/plain");
        check(None, b"MZ is how this text begins", "text/plain");
        check(None, b"BM and so does this one", "text/plain");
        check(None, b"\0\x01\x02\x03", "application/octet-stream");
        check(None, b"", "text/plain");
        let elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        check(Some("text/plain"), elf, "application/x-executable");
    }
}
