//! Formats a tool call as one line.

use serde_json::{Map, Value};

/// Output device: a terminal with this width, or a program that reads ASCII.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputDevice {
    Terminal { columns: usize },
    Program,
}

/// Maximum length of a line outside terminals.
const COLUMNS: usize = 200;
/// Placeholder for a pending result.
const DOTS: &str = "…";

/// A call and its result, if it has one.
pub(super) fn tool_line(
    name: &str,
    parameters: &Value,
    outcome: Option<&str>,
    reader: OutputDevice,
) -> String {
    let (mark, dots, columns) = match reader {
        OutputDevice::Terminal { columns } => ("⚙", DOTS, columns),
        OutputDevice::Program => ("*", "...", COLUMNS),
    };
    let plain = |text: &str| plain(text, reader);
    let name = plain(name);
    let parameters = match parameters {
        Value::Null => "{}".to_owned(),
        parameters => plain(&parameters.to_string()),
    };
    let outcome = plain(outcome.unwrap_or_default());
    // The result matters most, so parameters get a part of the line only.
    let head = cut(
        &format!("{mark} {name} {parameters}"),
        columns * 3 / 5,
        dots,
    );
    let line = format!("{head} {dots} {outcome}");
    cut(line.trim_end(), columns, dots)
}

/// The result of a tool call.
pub(super) fn outcome(completed: &Value) -> String {
    if let Some(error) = completed["error"].as_str() {
        return format!("failed: {error}");
    }
    match &completed["result"] {
        Value::Null => "done".to_owned(),
        Value::String(text) => text.clone(),
        Value::Object(result) => sole_text(result)
            .map_or_else(|| Value::Object(result.clone()).to_string(), str::to_owned),
        result => result.to_string(),
    }
}

/// The text of a result that has nothing else: `value` of the Local Agent, `text` of the runner packages.
fn sole_text(result: &Map<String, Value>) -> Option<&str> {
    let text = result.get("value").or_else(|| result.get("text"))?.as_str();
    text.filter(|_| result.len() == 1)
}

/// Removes control characters and merges white space.
pub(super) fn plain(text: &str, reader: OutputDevice) -> String {
    let words: Vec<_> = text
        .split(|letter: char| letter.is_whitespace() || letter.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    let text = words.join(" ");
    match reader {
        OutputDevice::Terminal { .. } => text,
        OutputDevice::Program => text.chars().map(in_ascii).collect(),
    }
}

fn in_ascii(letter: char) -> String {
    if letter.is_ascii() {
        letter.to_string()
    } else {
        letter.escape_unicode().to_string()
    }
}

/// Truncates a text to this width.
pub(super) fn cut(text: &str, columns: usize, dots: &str) -> String {
    let mut taken = 0;
    let max_width = columns.saturating_sub(dots.chars().count());
    let mut end = 0;
    for (at, letter) in text.char_indices() {
        taken += width(letter);
        if taken <= max_width {
            end = at + letter.len_utf8();
        }
        if taken > columns {
            return format!("{}{dots}", &text[..end]);
        }
    }
    text.to_owned()
}

/// Approximate width of a character: East Asian characters and emoji take two columns.
fn width(letter: char) -> usize {
    let is_wide = matches!(u32::from(letter),
        0x1100..=0x115F | 0x2E80..=0xA4CF | 0xAC00..=0xD7A3 | 0xF900..=0xFAFF | 0xFE30..=0xFE6F
        | 0xFF00..=0xFF60 | 0xFFE0..=0xFFE6 | 0x1F300..=0x1FAFF | 0x20000..=0x3FFFD);
    if is_wide { 2 } else { 1 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_fit_one_terminal_line() {
        let terminal = |columns| OutputDevice::Terminal { columns };
        let long = "y".repeat(500);
        for (parameters, outcome, reader, expected) in [
            (
                json!({"utc_offset": 2}),
                Some("14:05"),
                terminal(80),
                "⚙ now {\"utc_offset\":2} … 14:05",
            ),
            (
                json!({"utc_offset": 2}),
                Some("14:05"),
                OutputDevice::Program,
                "* now {\"utc_offset\":2} ... 14:05",
            ),
            (json!({}), None, terminal(80), "⚙ now {} …"),
            (
                Value::Null,
                Some("a\n\u{1b}[2Jb"),
                terminal(80),
                "⚙ now {} … a [2Jb",
            ),
            (
                json!({"x": long}),
                Some("14:05"),
                terminal(30),
                "⚙ now {\"x\":\"yyyyy… … 14:05",
            ),
            (
                json!({}),
                Some(long.as_str()),
                terminal(20),
                "⚙ now {} … yyyyyyyy…",
            ),
            (
                json!({}),
                Some("你好你好你好"),
                terminal(20),
                "⚙ now {} … 你好你好…",
            ),
            (
                json!({}),
                Some("größe"),
                OutputDevice::Program,
                "* now {} ... gr\\u{f6}\\u{df}e",
            ),
        ] {
            let line = tool_line("now", &parameters, outcome, reader);
            assert_eq!(line, expected);
            if let OutputDevice::Terminal { columns } = reader {
                assert!(line.chars().map(width).sum::<usize>() <= columns, "{line}");
            } else {
                assert!(line.is_ascii(), "{line}");
            }
        }
        let line = tool_line("now", &json!({}), Some(&long), OutputDevice::Program);
        assert_eq!(line.len(), COLUMNS);
    }

    #[test]
    fn shows_text_results_as_text() {
        for (completed, expected) in [
            (json!({"result": {"value": "14:05"}}), "14:05"),
            (json!({"result": {"a": 1, "b": 2}}), "{\"a\":1,\"b\":2}"),
            (json!({"result": {"text": "14:05"}}), "14:05"),
            (json!({"result": {"value": 3}}), "{\"value\":3}"),
            (
                json!({"result": {"text": "a", "n": 1}}),
                "{\"n\":1,\"text\":\"a\"}",
            ),
            (json!({"result": null, "error": "no"}), "failed: no"),
            (json!({"result": null}), "done"),
        ] {
            assert_eq!(outcome(&completed), expected);
        }
    }
}
