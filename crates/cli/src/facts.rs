//! Members of the API's objects as text.

use serde_json::Value;

use crate::output;
use crate::table::one_line;
use clock::Clock;

/// Text of a member; empty if it is absent.
pub(super) fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object[key].as_str().unwrap_or_default()
}

/// Elements of a member; empty if it is absent.
pub(super) fn elements<'a>(object: &'a Value, key: &str) -> &'a [Value] {
    object[key].as_array().map_or(&[], Vec::as_slice)
}

/// Time since a member in epoch seconds.
pub(super) fn age(object: &Value, key: &str) -> String {
    let Some(at) = object[key].as_i64() else {
        return "-".to_owned();
    };
    let now = Clock::system().now_ms().div_euclid(1000);
    // The clocks of both machines may differ.
    rounded(now.saturating_sub(at).max(0))
}

/// A member in epoch seconds, as RFC 3339.
pub(super) fn moment(object: &Value, key: &str) -> Option<String> {
    let at = object[key].as_i64()?;
    Some(output::time(at.saturating_mul(1000)))
}

/// Cause of a cancel or change: its kind, with the name or id.
pub(super) fn principal(object: &Value, key: &str) -> Option<String> {
    let principal = &object[key];
    let kind = principal["kind"].as_str()?;
    let shown = principal["name"].as_str().or(principal["id"].as_str());
    let kind = kind.replace('_', " ");
    Some(shown.map_or_else(|| kind.clone(), |shown| format!("{kind} {shown}")))
}

/// Duration of a run.
pub(super) fn took(run: &Value) -> Option<String> {
    run["duration_ms"].as_u64().map(milliseconds)
}

/// Milliseconds as seconds with one decimal.
pub(super) fn milliseconds(ms: u64) -> String {
    let tenths = ms.saturating_add(50) / 100;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

fn rounded(seconds: i64) -> String {
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Prints names and values, aligned. Values are untrusted; each begins on the line of its name.
pub(super) fn print_facts(facts: &[(&str, String)]) {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in facts {
        output::line_of(&[
            output::OutputPart::Styled(output::DIM, &format!("{name:width$}  ")),
            output::OutputPart::Text(&one_line(value)),
        ]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded() {
        for (seconds, expected) in [
            (0, "0 s"),
            (59, "59 s"),
            (60, "1 min"),
            (7200, "2 h"),
            (86_400 * 3, "3 d"),
        ] {
            assert_eq!(rounded(seconds), expected);
        }
        for (ms, expected) in [(0, "0.0 s"), (49, "0.0 s"), (1250, "1.3 s")] {
            assert_eq!(milliseconds(ms), expected);
        }
    }
}
