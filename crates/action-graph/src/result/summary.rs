//! Summaries: the tool's own, the executor's, or mechanical ones.

use std::fmt::Write as _;

use serde_json::Value;

use crate::json::canonical;
use crate::node::{ActionOutput, SummarySource};
use crate::result::tokens::{clip_head, estimate, head_bytes, tail_bytes};

/// Tokens up to which a complete text is its own summary.
pub const SHORT_TOKENS: usize = 600;
/// Keys and files that a mechanical summary lists.
const KEYS: usize = 12;
const FILES: usize = 10;
/// Bytes at each end of a text that a mechanical summary looks at.
const LOOKED_AT: usize = 64 << 10;

/// An output as text: a text as it is, anything else as canonical JSON.
pub fn text_of(output: &ActionOutput) -> String {
    match &output.value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => canonical(other),
    }
}

/// The complete text when it is short, else the best summary without a model; with its source.
pub fn summary_of(output: &ActionOutput) -> (String, SummarySource) {
    // By bytes first: a long text need not be counted.
    let is_short = output.bytes <= SHORT_TOKENS * 8;
    if is_short {
        let text = text_of(output);
        if estimate(&text) <= SHORT_TOKENS {
            return (text, SummarySource::Mechanical);
        }
    }
    if let Some((text, source)) = &output.summary {
        return (clip_head(text, SHORT_TOKENS, &estimate).to_owned(), *source);
    }
    (mechanical(output), SummarySource::Mechanical)
}

/// Counts, keys, files, exit code, first and last remarkable line.
pub fn mechanical(output: &ActionOutput) -> String {
    let mut lines = Vec::new();
    match &output.value {
        Value::String(text) => text_lines(text, output.bytes, &mut lines),
        Value::Array(list) => {
            lines.push(format!("{} items, {} bytes", list.len(), output.bytes));
            if let Some(Value::Object(first)) = list.first() {
                lines.push(format!("Keys of an item: {}", keys(first.keys())));
            }
        }
        Value::Object(object) => {
            lines.push(format!("{} keys, {} bytes", object.len(), output.bytes));
            lines.push(format!("Keys: {}", keys(object.keys())));
            let lists = object
                .iter()
                .filter_map(|(key, value)| Some((key, value.as_array()?)));
            let mut lists: Vec<_> = lists.collect();
            // Sorted: the summary must not depend on the order of insertion.
            lists.sort_unstable_by_key(|(key, _)| *key);
            let lists = lists.into_iter().take(KEYS);
            lines.extend(lists.map(|(key, list)| format!("{key}: {} items", list.len())));
            for key in ["exit_code", "exitCode", "status", "count", "total"] {
                if let Some(value) = object.get(key).filter(|value| !value.is_object()) {
                    lines.push(format!("{key}: {}", head_bytes(&canonical(value), 100)));
                }
            }
            let file_keys = ["files", "matches", "paths"];
            let files = file_keys
                .iter()
                .find_map(|key| object.get(*key)?.as_array());
            let files = files.into_iter().flatten().filter_map(Value::as_str);
            let files: Vec<_> = files
                .take(FILES)
                .map(|file| head_bytes(file, 200))
                .collect();
            if !files.is_empty() {
                lines.push(format!("Files: {}", files.join(", ")));
            }
        }
        scalar => lines.push(canonical(scalar)),
    }
    clip_head(&lines.join("\n"), SHORT_TOKENS, &estimate).to_owned()
}

fn keys<'a>(keys: impl Iterator<Item = &'a String>) -> String {
    let mut keys: Vec<_> = keys.map(|key| head_bytes(key, 64)).collect();
    keys.sort_unstable();
    let more = keys.len().saturating_sub(KEYS);
    keys.truncate(KEYS);
    let mut text = keys.join(", ");
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

fn text_lines(text: &str, bytes: usize, lines: &mut Vec<String>) {
    let head = head_bytes(text, LOOKED_AT);
    // Both ends only: the middle of a large text is not read.
    let tail = tail_bytes(text, LOOKED_AT);
    let full = |line: &&str| !line.trim().is_empty();
    let first = head.lines().find(|line| line.starts_with('#'));
    let first = first.or_else(|| head.lines().find(full));
    if let Some(first) = first {
        lines.push(head_bytes(first.trim(), 300).to_owned());
    }
    // A stored value may be shortened; then its lines cannot be counted.
    let is_complete = text.len() >= bytes;
    let count = if is_complete { text.lines().count() } else { 0 };
    lines.push(if is_complete {
        format!("{count} lines, {bytes} bytes")
    } else {
        format!("{bytes} bytes")
    });
    let is_error = |line: &&str| {
        let line = line.to_ascii_lowercase();
        ["error", "failed", "panic", "exception", "fatal"]
            .iter()
            .any(|word| line.contains(word))
    };
    // From the end: the last error is usually the cause of the failure.
    if let Some(error) = tail.lines().rev().find(is_error) {
        lines.push(format!("Last error: {}", head_bytes(error.trim(), 300)));
    }
    if let Some(last) = tail
        .lines()
        .rev()
        .find(full)
        // A text of one line would be listed twice.
        .filter(|last| Some(*last) != first)
    {
        lines.push(format!("Last line: {}", head_bytes(last.trim(), 300)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn short_texts_are_their_own_summary() {
        let output = ActionOutput::json(json!({"a": 1}));
        assert_eq!(summary_of(&output).0, r#"{"a":1}"#);
    }

    #[test]
    fn tool_summary_precedes_a_mechanical_one() {
        let mut output = ActionOutput::text(&"line\n".repeat(2_000));
        assert_eq!(summary_of(&output).1, SummarySource::Mechanical);
        output.summary = Some(("3 matches".to_owned(), SummarySource::Tool));
        assert_eq!(
            summary_of(&output),
            ("3 matches".to_owned(), SummarySource::Tool)
        );
    }

    #[test]
    fn mechanical_summary_counts_and_quotes() {
        let mut log = "# Build\nok\n".repeat(1_000);
        log.push_str("error: no such file\ndone\n");
        let summary = mechanical(&ActionOutput::text(&log));
        assert_eq!(
            summary,
            "# Build\n2002 lines, 11025 bytes\nLast error: error: no such file\nLast line: done"
        );
        let json =
            json!({"files": (0..20).map(|n| format!("f{n}")).collect::<Vec<_>>(), "exit_code": 1});
        let summary = mechanical(&ActionOutput::json(json));
        assert!(summary.contains("files: 20 items") && summary.contains("exit_code: 1"));
        assert!(summary.contains("f9") && !summary.contains("f10"));
    }
}
