//! What a command prints: results on stdout, the rest on stderr.

use std::io::Write;

use serde_json::{Value, json};

/// A line of the result.
pub(super) fn line(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // Whoever closed the pipe does not read this either.
    let _ = writeln!(stdout, "{text}");
    let _ = stdout.flush();
}

/// A piece of the result, shown at once.
pub(super) fn piece(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = write!(stdout, "{text}");
    let _ = stdout.flush();
}

/// A remark beside the result.
pub(super) fn remark(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// A piece of a remark, shown at once.
pub(super) fn remark_piece(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = write!(stderr, "{text}");
    let _ = stderr.flush();
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
        line(&json!({"error": {"message": error.to_string(), "causes": causes}}).to_string());
    } else {
        remark(&format!("error: {error:#}"));
    }
}
