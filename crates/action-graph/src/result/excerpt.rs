//! Excerpts: windows around matches, head and tail, and pruned JSON.

use serde_json::{Map, Value};

use crate::json::canonical;
use crate::result::tokens::{TOKEN_BYTES, TokenCounter, clip_head, clip_tail, head_bytes};

/// Items that a pruned list keeps.
const ITEMS: usize = 20;
/// Lines around a match.
const AROUND: usize = 3;
/// Lines that are searched.
const SEARCHED: usize = 100_000;

/// The mark of text that is left out.
pub(crate) const GAP: &str = "[…]";

/// Windows of lines around matches of the words, within `most` tokens; `None` without a match.
pub fn windows(
    text: &str,
    words: &[String],
    around: usize,
    max_tokens: usize,
    count: TokenCounter<'_>,
) -> Option<String> {
    let words: Vec<_> = words
        .iter()
        .filter(|word| !word.is_empty())
        .map(|word| word.to_lowercase())
        .collect();
    if words.is_empty() {
        return None;
    }
    // Bounded: the text may be a log of many megabytes.
    let lines: Vec<&str> = text.lines().take(SEARCHED).collect();
    let mut shown: Vec<(usize, usize)> = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let line = line.to_lowercase();
        if !words.iter().any(|word| line.contains(word)) {
            continue;
        }
        let (begin, end) = (
            number.saturating_sub(around),
            (number + around + 1).min(lines.len()),
        );
        match shown.last_mut() {
            // Overlapping windows are joined, so that no line is shown twice.
            Some(last) if last.1 >= begin => last.1 = end,
            _ => shown.push((begin, end)),
        }
        // More windows than any budget shows.
        if shown.len() > 64 {
            break;
        }
    }
    if shown.is_empty() {
        return None;
    }
    let mut parts = Vec::new();
    let mut after = 0;
    for (begin, end) in shown {
        if begin > after {
            parts.push(GAP.to_owned());
        }
        parts.extend(lines[begin..end].iter().map(|line| (*line).to_owned()));
        after = end;
    }
    // The reader must see that the text continues.
    if after < lines.len() {
        parts.push(GAP.to_owned());
    }
    Some(clip_head(&parts.join("\n"), max_tokens, count).to_owned())
}

/// Two thirds from the beginning, one third from the end, at lines, with the gap marked.
pub fn head_and_tail(text: &str, max_tokens: usize, count: TokenCounter<'_>) -> String {
    // Bytes first: counting tokens of a huge text is expensive.
    if text.len() <= max_tokens.saturating_mul(TOKEN_BYTES) && count(text) <= max_tokens {
        return text.to_owned();
    }
    // The mark and its line breaks are part of the budget.
    let max_tokens = max_tokens.saturating_sub(count(GAP) + 2);
    let head = clip_head(text, max_tokens * 2 / 3, count);
    let tail = clip_tail(&text[head.len()..], max_tokens - max_tokens * 2 / 3, count);
    // Nothing would be left out.
    if head.len() + tail.len() >= text.len() {
        return text.to_owned();
    }
    format!(
        "{}\n{GAP}\n{}",
        head.trim_end_matches('\n'),
        tail.trim_start_matches('\n')
    )
}

/// The end first, at a line, with the gap marked.
pub fn tail_first(text: &str, max_tokens: usize, count: TokenCounter<'_>) -> String {
    if text.len() <= max_tokens.saturating_mul(TOKEN_BYTES) && count(text) <= max_tokens {
        return text.to_owned();
    }
    let tail = clip_tail(text, max_tokens.saturating_sub(count(GAP) + 1), count);
    format!("{GAP}\n{}", tail.trim_start_matches('\n'))
}

/// Part of a text without any of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExcerptEnds {
    /// The end first, as of an error output.
    Tail,
    Both,
}

/// An excerpt: windows around the words, else the given ends.
pub fn excerpt(
    text: &str,
    words: &[String],
    ends: ExcerptEnds,
    max_tokens: usize,
    count: TokenCounter<'_>,
) -> String {
    if let Some(windows) = windows(text, words, AROUND, max_tokens, count) {
        return windows;
    }
    match ends {
        ExcerptEnds::Tail => tail_first(text, max_tokens, count),
        ExcerptEnds::Both => head_and_tail(text, max_tokens, count),
    }
}

/// JSON within `most` tokens: keys of priority first, then less depth; lists keep 20 items.
pub fn structured(
    value: &Value,
    priority: &[String],
    max_tokens: usize,
    count: TokenCounter<'_>,
) -> String {
    // Less depth before fewer keys.
    for depth in [8, 4, 3, 2, 1] {
        let text = canonical(&prune(value, depth));
        if text.len() <= max_tokens.saturating_mul(TOKEN_BYTES) && count(&text) <= max_tokens {
            return text;
        }
    }
    let Value::Object(object) = value else {
        return head_and_tail(&canonical(&prune(value, 1)), max_tokens, count);
    };
    let mut selected = Map::new();
    let first = priority.iter().filter(|key| object.contains_key(*key));
    // Sorted, so that equal results give equal texts.
    let mut rest: Vec<_> = object
        .keys()
        .filter(|key| !priority.contains(key))
        .collect();
    rest.sort_unstable();
    for key in first.chain(rest) {
        let Some(value) = object.get(key) else {
            continue;
        };
        selected.insert(key.clone(), prune(value, 2));
        let text = canonical(&Value::Object(selected.clone()));
        // A large member is skipped; later ones may still fit.
        if text.len() > max_tokens.saturating_mul(TOKEN_BYTES) || count(&text) > max_tokens {
            selected.remove(key);
        }
        if selected.len() > 64 {
            break;
        }
    }
    canonical(&Value::Object(selected))
}

/// A value with less depth: lists keep 20 items, texts 500 bytes.
fn prune(value: &Value, depth: usize) -> Value {
    match value {
        Value::Array(list) if depth == 0 => format!("[{} items]", list.len()).into(),
        Value::Object(object) if depth == 0 => format!("{{{} keys}}", object.len()).into(),
        Value::Array(list) => {
            let mut pruned: Vec<_> = list
                .iter()
                .take(ITEMS)
                .map(|one| prune(one, depth - 1))
                .collect();
            // The number of missing items is shown, so that the model can request them.
            if list.len() > ITEMS {
                pruned.push(format!("{} more", list.len() - ITEMS).into());
            }
            pruned.into()
        }
        Value::Object(object) => {
            let pruned = object
                .iter()
                .map(|(key, one)| (key.clone(), prune(one, depth - 1)));
            Value::Object(pruned.collect())
        }
        Value::String(text) if text.len() > 500 => format!("{}{GAP}", head_bytes(text, 500)).into(),
        scalar => scalar.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::result::tokens::estimate;

    #[test]
    fn windows_surround_matches_and_mark_gaps() {
        let text: Vec<_> = (0..50).map(|n| format!("line {n}")).collect();
        let text = text.join("\n");
        let found = windows(&text, &["line 20".to_owned()], 1, 100, &estimate);
        assert_eq!(
            found.as_deref(),
            Some("[…]\nline 19\nline 20\nline 21\n[…]")
        );
        assert_eq!(
            windows(&text, &["none".to_owned()], 1, 100, &estimate),
            None
        );
    }

    #[test]
    fn excerpts_stay_within_their_bound() {
        let text = "some words in a line\n".repeat(500);
        for max_tokens in [20, 100, 1_000] {
            assert!(estimate(&head_and_tail(&text, max_tokens, &estimate)) <= max_tokens);
            assert!(estimate(&tail_first(&text, max_tokens, &estimate)) <= max_tokens);
        }
    }

    #[test]
    fn structured_keeps_priority_keys() {
        let value = json!({"a": "x".repeat(400), "b": "y".repeat(400), "errors": [1, 2]});
        let text = structured(&value, &["errors".to_owned()], 120, &estimate);
        assert!(text.contains("errors") && estimate(&text) <= 120, "{text}");
    }
}
