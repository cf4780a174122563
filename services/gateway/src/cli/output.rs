//! What a command prints: results on stdout, the rest on stderr. Texts of far sides do not steer a terminal.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};

use serde_json::{Value, json};

use telemetry::for_terminals;

/// A control sequence of this program, which terminals are to obey.
#[derive(Clone, Copy)]
pub(super) struct Escape(pub(super) &'static str);

/// A part of a styled remark.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Escape(Escape),
    Text(&'a str),
}

/// A line of the result.
pub(super) fn line(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let text = shown(text, &stdout);
    // A closed pipe has no reader for this either.
    let _ = writeln!(stdout, "{text}");
    let _ = stdout.flush();
}

/// A document of the result, on one line.
pub(super) fn document(value: &Value) {
    line(&for_terminals(&value.to_string()));
}

/// A piece of the result, shown at once.
pub(super) fn piece(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let text = shown(text, &stdout);
    let _ = write!(stdout, "{text}");
    let _ = stdout.flush();
}

/// A remark beside the result.
pub(super) fn remark(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let text = shown(text, &stderr);
    let _ = writeln!(stderr, "{text}");
}

/// A piece of a remark, shown at once.
pub(super) fn remark_piece(text: &str) {
    styled(&[Part::Text(text)]);
}

/// A piece of a remark with control sequences of this program, shown at once.
pub(super) fn styled(parts: &[Part<'_>]) {
    let mut stderr = std::io::stderr().lock();
    for part in parts {
        let text = match part {
            Part::Escape(Escape(sequence)) => Cow::Borrowed(*sequence),
            Part::Text(text) => shown(text, &stderr),
        };
        let _ = write!(stderr, "{text}");
    }
    let _ = stderr.flush();
}

/// A text as its stream takes it: files and pipes get every byte of it.
fn shown<'a>(text: &'a str, stream: &impl IsTerminal) -> Cow<'a, str> {
    if text.chars().any(steers) && stream.is_terminal() {
        Cow::Owned(harmless(text))
    } else {
        Cow::Borrowed(text)
    }
}

/// A text that does not steer a terminal.
pub(super) fn harmless(text: &str) -> String {
    text.chars().filter(|letter| !steers(*letter)).collect()
}

/// Control characters (C0, DEL, C1) but line breaks and tabs, and marks that turn the direction of all that follows.
fn steers(letter: char) -> bool {
    let is_control = letter.is_control() && letter != '\n' && letter != '\t';
    is_control || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A time in epoch milliseconds, as people read it: to the second, in UTC.
pub(super) fn time(at_ms: i64) -> String {
    let at = chrono::DateTime::from_timestamp_millis(at_ms);
    at.map_or_else(
        || format!("{at_ms} ms"),
        |at| at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
    )
}

/// Why the command failed, with its causes.
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
    fn removes_what_steers_a_terminal() {
        let text = "a\u{1b}]0;title\u{7}\u{9b}2J\u{8}\r\u{7f}\u{202e}b\n\tc 天";
        assert_eq!(harmless(text), "a]0;title2Jb\n\tc 天");
    }
}
