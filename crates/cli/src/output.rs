//! Command output: results on stdout, remarks on stderr. Untrusted text cannot control the terminal.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;

use anstyle::{AnsiColor, Style};
use serde_json::{Value, json};

use telemetry::for_terminals;

/// Default width of a terminal, in columns.
const COLUMNS: usize = 80;

pub const DIM: Style = Style::new().dimmed();
pub const GREEN: Style = AnsiColor::Green.on_default();
pub const RED: Style = AnsiColor::Red.on_default();
pub const YELLOW: Style = AnsiColor::Yellow.on_default();

/// Form of results on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// For a person at a terminal.
    Text,
    /// For programs: one JSON document, or one a line.
    Json,
}

impl OutputFormat {
    /// True for JSON.
    pub fn is_json(self) -> bool {
        self == Self::Json
    }
}

impl From<bool> for OutputFormat {
    /// True: the argument `--json` is given.
    fn from(is_json: bool) -> Self {
        if is_json { Self::Json } else { Self::Text }
    }
}

/// A control sequence of this program, which passes unfiltered.
#[derive(Clone, Copy)]
pub struct Escape(pub &'static str);

/// A part of a styled remark.
#[derive(Clone, Copy)]
pub enum OutputPart<'a> {
    Escape(Escape),
    Styled(Style, &'a str),
    Text(&'a str),
}

/// Prints a result line.
pub fn line(text: &str) {
    line_of(&[OutputPart::Text(text)]);
}

/// Prints a result line in a style.
pub fn styled_line(style: Style, text: &str) {
    line_of(&[OutputPart::Styled(style, text)]);
}

/// Prints a result line of several parts.
pub fn line_of(parts: &[OutputPart<'_>]) {
    let mut stdout = std::io::stdout().lock();
    write(&mut stdout, parts);
    // Ignored: a closed pipe has no reader.
    let _ = writeln!(stdout);
    let _ = stdout.flush();
}

/// Prints a JSON result on one line.
pub fn document(value: &Value) {
    // JSON escapes keep the text equal for programs, and harmless for a terminal.
    line(&for_terminals(&value.to_string()));
}

/// Prints a part of the result and flushes.
pub fn piece(text: &str) {
    let mut stdout = std::io::stdout().lock();
    write(&mut stdout, &[OutputPart::Text(text)]);
    let _ = stdout.flush();
}

/// Prints a remark and a line break on standard error.
pub fn remark(text: &str) {
    let mut stderr = std::io::stderr().lock();
    write(&mut stderr, &[OutputPart::Text(text)]);
    let _ = writeln!(stderr);
}

/// Prints the cause of a failure, after `error:` in red.
pub fn fault(text: &str) {
    styled(&[
        OutputPart::Styled(RED.bold(), "error:"),
        OutputPart::Text(" "),
        OutputPart::Text(text),
        OutputPart::Text("\n"),
    ]);
}

/// Prints parts of a remark and flushes.
pub fn styled(parts: &[OutputPart<'_>]) {
    let mut stderr = std::io::stderr().lock();
    write(&mut stderr, parts);
    let _ = stderr.flush();
}

fn write(stream: &mut (impl Write + IsTerminal), parts: &[OutputPart<'_>]) {
    for part in parts {
        let _ = match part {
            OutputPart::Escape(Escape(sequence)) => write!(stream, "{sequence}"),
            OutputPart::Styled(style, text) if has_colors(stream) => {
                let text = shown(text, stream);
                write!(stream, "{style}{text}{style:#}")
            }
            OutputPart::Styled(_, text) | OutputPart::Text(text) => {
                let text = shown(text, stream);
                write!(stream, "{text}")
            }
        };
    }
}

/// True if output on a stream is styled: on terminals, unless `NO_COLOR` or `TERM=dumb` is set.
pub fn has_colors(stream: &impl IsTerminal) -> bool {
    use anstyle_query::{clicolor, no_color};
    is_screen(stream) && !no_color() && clicolor() != Some(false)
}

/// True if a stream is a terminal that can move its cursor.
pub fn is_screen(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && anstyle_query::term_supports_color()
}

/// Width of a terminal.
pub fn columns(stream: impl AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(stream);
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    // Some terminals, such as serial consoles, report a width of 0.
    if columns == 0 { COLUMNS } else { columns }
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
pub fn without_controls(text: &str) -> String {
    text.chars()
        .filter(|letter| !controls_terminal(*letter))
        .collect()
}

/// Control characters (C0, DEL, C1) except line breaks and tabs, and bidirectional overrides.
fn controls_terminal(letter: char) -> bool {
    let is_control = letter.is_control() && letter != '\n' && letter != '\t';
    is_control || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A number with its noun: `1 chunk`, `2 chunks`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Formats epoch milliseconds as RFC 3339 in UTC, to the second.
pub fn time(at_ms: i64) -> String {
    let at = chrono::DateTime::from_timestamp_millis(at_ms);
    at.map_or_else(
        || format!("{at_ms} ms"),
        |at| at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
    )
}

/// Prints an error with its causes.
pub fn error(error: &anyhow::Error, format: OutputFormat) {
    if format.is_json() {
        let causes: Vec<Value> = error
            .chain()
            .skip(1)
            .map(|cause| json!(cause.to_string()))
            .collect();
        document(&json!({"error": {"message": error.to_string(), "causes": causes}}));
    } else {
        fault(&format!("{error:#}"));
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
