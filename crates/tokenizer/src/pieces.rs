//! Pre-tokenization: no token crosses the border of two pieces.

use std::iter;

use regex::Regex;

/// Pattern of `o200k_base`, without its last two alternatives: see [`Splitter`].
pub(super) const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*",
    r"|\s*[\r\n]+",
);
/// Pattern of `cl100k_base`, likewise.
pub(super) const CL100K: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+",
    r"|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"|\s*[\r\n]+",
);

/// Splits by a pattern that ends with `\s+(?!\S)|\s+`. The crate `regex` has no look-ahead, so that the pattern here ends
/// with `\s+`, and spaces before a word give their last one back.
pub(super) struct Splitter(Regex);

impl Splitter {
    pub(super) fn new(start: &str) -> Self {
        let pattern = Regex::new(&format!(r"{start}|\s+"));
        Self(pattern.expect("the pattern is a constant"))
    }

    pub(super) fn pieces<'a>(&'a self, text: &'a str) -> impl Iterator<Item = &'a str> {
        let mut rest = text;
        iter::from_fn(move || {
            // Some alternative matches every character, so that the match begins here.
            let found = self.0.find(rest)?.as_str();
            let (piece, after) = rest.split_at(found.len() - given_back(found, rest));
            rest = after;
            Some(piece)
        })
    }
}

/// Bytes of the last space, if it belongs to the word after it.
fn given_back(found: &str, rest: &str) -> usize {
    let mut chars = found.chars();
    match chars.next_back() {
        Some(last)
            if found.len() < rest.len()
                && !matches!(last, '\r' | '\n')
                && last.is_whitespace()
                && chars.next_back().is_some() =>
        {
            last.len_utf8()
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_stay_with_the_next_word() {
        let splitter = Splitter::new(O200K);
        for (text, pieces) in [
            ("", &[][..]),
            ("a b", &["a", " b"]),
            ("a   b", &["a", "  ", " b"]),
            ("a \n\n  b", &["a", " \n\n", " ", " b"]),
            ("a  ", &["a", "  "]),
            ("it's 12345!", &["it's", " ", "123", "45", "!"]),
            ("我们 。", &["我们", " 。"]),
        ] {
            let split: Vec<_> = splitter.pieces(text).collect();
            assert_eq!(split, pieces, "{text:?}");
        }
    }
}
