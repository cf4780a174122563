//! Expansion of stored results: the runtime picks the windows, within bounds.

use crate::declaration::ExpandItem;
use crate::result::excerpt::{head_and_tail, windows};
use crate::result::tokens::{TokenCounter, clip_head, count_long};

/// Tokens of one reference and of one request.
const PER_REFERENCE: usize = 3_000;
const PER_REQUEST: usize = 8_000;
/// Default of lines around a match.
const LINES: usize = 3;

/// One answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expanded {
    pub reference: String,
    /// The text; empty where the result is gone or the request is used up.
    pub text: String,
    /// Tokens of the text.
    pub tokens: usize,
    /// Tokens of the complete result.
    pub of_tokens: usize,
    /// Reason of a shorter text: `missing`, `budget` or `window`.
    pub why: Option<&'static str>,
}

/// Answers the requests of one declaration. `load` reads a stored result as text, and refuses private ones.
pub fn expand(
    items: &[ExpandItem],
    load: &mut dyn FnMut(&ExpandItem) -> Option<String>,
    count: TokenCounter<'_>,
) -> Vec<Expanded> {
    let mut left = PER_REQUEST;
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        let mut answer = Expanded {
            reference: item.reference.to_string(),
            text: String::new(),
            tokens: 0,
            of_tokens: 0,
            why: None,
        };
        match load(item) {
            None => answer.why = Some("missing"),
            Some(full_text) => {
                let max_tokens = left.min(PER_REFERENCE);
                answer.of_tokens = count_long(&full_text, count);
                answer.text = part(item, &full_text, max_tokens, count);
                answer.tokens = count(&answer.text);
                left = left.saturating_sub(answer.tokens);
                // An empty result is complete, not a lack of budget.
                if answer.text.is_empty() && !full_text.is_empty() {
                    answer.why = Some("budget");
                } else if answer.tokens < answer.of_tokens {
                    answer.why = Some("window");
                }
            }
        }
        answers.push(answer);
    }
    answers
}

fn part(item: &ExpandItem, full_text: &str, max_tokens: usize, count: TokenCounter<'_>) -> String {
    let range = &item.range;
    // Explicit lines precede a search.
    if range.from.is_some() || range.lines.is_some() {
        let skipped = range.from.unwrap_or(1).saturating_sub(1) as usize;
        let taken = range.lines.unwrap_or(u32::MAX) as usize;
        let lines: Vec<_> = full_text.lines().skip(skipped).take(taken).collect();
        return clip_head(&lines.join("\n"), max_tokens, count).to_owned();
    }
    if range.around_matches || range.pattern.is_some() {
        let around = match range.context_lines {
            0 => LINES,
            lines => usize::from(lines),
        };
        let words = match &range.pattern {
            // Without a pattern, the reason usually names what the model looks for.
            Some(pattern) => vec![pattern.clone()],
            None => words_of(&item.reason),
        };
        if let Some(text) = windows(full_text, &words, around, max_tokens, count) {
            return text;
        }
    }
    head_and_tail(full_text, max_tokens, count)
}

/// Words of a reason that may occur in a text.
fn words_of(reason: &str) -> Vec<String> {
    let words = reason.split(|c: char| !c.is_alphanumeric() && c != '_');
    words
        // Short words match nearly every line.
        .filter(|word| word.chars().count() > 3)
        .take(16)
        .map(str::to_owned)
        .collect()
}
