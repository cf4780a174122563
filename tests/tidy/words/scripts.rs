//! Names, comments and texts of Python and TypeScript files.

use std::collections::BTreeSet;

use super::dialect::Source;

pub(crate) fn python(text: &str) -> Source {
    read(text, "#", &["\"\"\"", "'''", "\"", "'"])
}

pub(crate) fn typescript(text: &str) -> Source {
    read(text, "//", &["`", "\"", "'"])
}

/// Reads code with line comments behind `marker` and literals between `quotes`. Docstrings and block comments count as
/// comments; each distinct identifier of a file is a name.
fn read(text: &str, marker: &str, quotes: &[&str]) -> Source {
    let mut source = Source {
        lines: text.lines().count(),
        ..Source::default()
    };
    let mut names = BTreeSet::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let quote = quotes.iter().find(|quote| rest.starts_with(**quote));
        let length = if rest.starts_with(marker) {
            let comment = rest.lines().next().unwrap_or_default();
            let words = comment.trim_start_matches(['#', '/']).trim();
            source.comments.push((line, words.to_owned()));
            source.reasons += 1;
            comment.len()
        } else if let Some(comment) = block_comment(rest, marker) {
            source.add_block(line, comment);
            comment.len()
        } else if let Some(quote) = quote {
            let literal = literal(rest, quote);
            if quote.len() == 3 {
                source.add_block(line, literal);
            } else if literal.contains(' ') {
                source.texts.push((line, literal.to_owned()));
            }
            literal.len()
        } else if first.is_alphabetic() || first == '_' {
            let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
            let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
            if names.insert(&rest[..end]) {
                source.names.push((line, rest[..end].to_owned()));
            }
            end
        } else {
            first.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    source
}

fn block_comment<'a>(rest: &'a str, marker: &str) -> Option<&'a str> {
    if marker != "//" || !rest.starts_with("/*") {
        return None;
    }
    let end = rest.find("*/").map_or(rest.len(), |at| at + 2);
    Some(&rest[..end])
}

/// The literal at the start, with its quotes.
fn literal<'a>(rest: &'a str, quote: &str) -> &'a str {
    let mut at = quote.len();
    while let Some(letter) = rest[at..].chars().next() {
        if rest[at..].starts_with(quote) {
            return &rest[..at + quote.len()];
        }
        at += letter.len_utf8();
        if letter == '\\' {
            at += rest[at..].chars().next().map_or(0, char::len_utf8);
        }
    }
    rest
}

impl Source {
    fn add_block(&mut self, first: usize, block: &str) {
        for (line, comment) in (first..).zip(block.lines()) {
            let words = comment.trim().trim_matches(['/', '*', '"', '\'']).trim();
            if !words.is_empty() {
                self.comments.push((line, words.to_owned()));
            }
        }
    }
}
