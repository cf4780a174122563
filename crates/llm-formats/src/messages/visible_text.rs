//! Removes leading reasoning that some models write in their text.

use crate::chat::ThinkFilter;

/// First characters of reasoning marks.
const BEGINNINGS: [char; 3] = ['<', '[', '◁'];

/// Removes reasoning from a text that starts like a reasoning mark. Any other text stays unchanged, because it
/// may mention such marks.
#[derive(Debug, Default)]
pub(crate) enum VisibleTextFilter {
    #[default]
    Blank,
    Plain,
    Filtered(Box<ThinkFilter>),
}

impl VisibleTextFilter {
    /// Returns the text that the next piece adds.
    pub(crate) fn read(&mut self, piece: &str) -> String {
        if let Self::Blank = self {
            match piece.trim_start().chars().next() {
                // White space decides nothing: models write it before a mark.
                None => return String::new(),
                Some(first) if BEGINNINGS.contains(&first) => {
                    *self = Self::Filtered(Box::default());
                }
                // Later marks are part of the text, which may be about them.
                Some(_) => *self = Self::Plain,
            }
        }
        match self {
            Self::Filtered(filter) => filter.push(piece).text,
            _ => piece.to_owned(),
        }
    }

    /// Returns the buffered text at the end.
    pub(crate) fn finish(&mut self) -> String {
        match self {
            Self::Filtered(filter) => filter.finish(),
            _ => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_leading_reasoning_and_keeps_other_marks() {
        for (pieces, expected) in [
            (&["<thi", "nk>hm</think>", "hello"][..], "hello"),
            (&["\n", "<think>hm</think> hello"], "hello"),
            (&["a `x` <think>", "b"], "a `x` <think>b"),
            (&["<html>"], "<html>"),
            (&[" ", ""], ""),
        ] {
            for pieces in [pieces, &[pieces.concat().as_str()]] {
                let mut filter = VisibleTextFilter::default();
                let mut text: String = pieces.iter().map(|piece| filter.read(piece)).collect();
                text += &filter.finish();
                assert_eq!(text.trim_start(), expected, "{pieces:?}");
            }
        }
    }
}
