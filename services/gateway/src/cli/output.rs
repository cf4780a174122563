//! Command output: results on stdout, remarks on stderr. Untrusted text cannot control the terminal.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use telemetry::for_terminals;

/// A control sequence of this program, which passes unfiltered.
#[derive(Clone, Copy)]
pub(super) struct Escape(pub(super) &'static str);

/// A part of a styled remark.
#[derive(Clone, Copy)]
pub(super) enum OutputPart<'a> {
    Escape(Escape),
    Text(&'a str),
}

/// Prints a result line.
pub(super) fn line(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let text = shown(text, &stdout);
    // Ignored: a closed pipe has no reader.
    let _ = writeln!(stdout, "{text}");
    let _ = stdout.flush();
}

/// Prints a JSON result on one line.
pub(super) fn document(value: &Value) {
    line(&for_terminals(&value.to_string()));
}

/// Prints a part of the result and flushes.
pub(super) fn piece(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let text = shown(text, &stdout);
    let _ = write!(stdout, "{text}");
    let _ = stdout.flush();
}

/// Prints a remark.
pub(super) fn remark(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let text = shown(text, &stderr);
    let _ = writeln!(stderr, "{text}");
}

/// Prints a part of a remark and flushes.
pub(super) fn remark_piece(text: &str) {
    styled(&[OutputPart::Text(text)]);
}

/// Prints a part of a remark with control sequences and flushes.
pub(super) fn styled(parts: &[OutputPart<'_>]) {
    let mut stderr = std::io::stderr().lock();
    for part in parts {
        let text = match part {
            OutputPart::Escape(Escape(sequence)) => Cow::Borrowed(*sequence),
            OutputPart::Text(text) => shown(text, &stderr),
        };
        let _ = write!(stderr, "{text}");
    }
    let _ = stderr.flush();
}

/// Filters a text for a terminal. Files and pipes get every byte.
fn shown<'a>(text: &'a str, stream: &impl IsTerminal) -> Cow<'a, str> {
    if text.chars().any(controls_terminal) && stream.is_terminal() {
        Cow::Owned(without_controls(text))
    } else {
        Cow::Borrowed(text)
    }
}

/// A text without terminal control characters.
pub(super) fn without_controls(text: &str) -> String {
    text.chars()
        .filter(|letter| !controls_terminal(*letter))
        .collect()
}

/// Control characters (C0, DEL, C1) except line breaks and tabs, and bidirectional overrides.
fn controls_terminal(letter: char) -> bool {
    let is_control = letter.is_control() && letter != '\n' && letter != '\t';
    is_control || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Formats epoch milliseconds as RFC 3339 in UTC, to the second.
pub(super) fn time(at_ms: i64) -> String {
    let at = chrono::DateTime::from_timestamp_millis(at_ms);
    at.map_or_else(
        || format!("{at_ms} ms"),
        |at| at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
    )
}

/// Prints an error with its causes.
pub(super) fn error(error: &anyhow::Error, as_json: bool) {
    if as_json {
        let causes: Vec<Value> = error
            .chain()
            .skip(1)
            .map(|cause| json!(cause.to_string()))
            .collect();
        document(&json!({"error": {"message": error.to_string(), "causes": causes}}));
    } else {
        remark(&format!("error: {error:#}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_terminal_control_characters() {
        let text = "a\u{1b}]0;title\u{7}\u{9b}2J\u{8}\r\u{7f}\u{202e}b\n\tc 天";
        assert_eq!(without_controls(text), "a]0;title2Jb\n\tc 天");
    }
}
