//! JSON log format: one object per line, errors with all their causes, fields of bounded length.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value, json};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::event_fields::EventFields;

/// Fields are siblings of `timestamp`, `level`, `message` and `target`. The library's own JSON format omits the
/// causes of errors.
pub(super) struct JsonLines;

impl<S, N> FormatEvent<S, N> for JsonLines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut fields = EventFields::default();
        event.record(&mut fields);
        let mut line = Map::new();
        line.insert("timestamp".to_owned(), Value::String(time));
        line.insert("level".to_owned(), json!(event.metadata().level().as_str()));
        line.append(&mut fields.0);
        line.insert("target".to_owned(), json!(event.metadata().target()));
        writeln!(
            writer,
            "{}",
            // The text of an event may come from a client: it must not control the terminal of an operator.
            for_terminals(&Value::Object(line).to_string())
        )
    }
}

/// Escapes U+007F to U+009F in JSON text. They control terminals, and JSON leaves them unescaped in strings.
pub fn for_terminals(json: &str) -> Cow<'_, str> {
    let steers = |letter: char| matches!(letter, '\u{7f}'..='\u{9f}');
    if !json.contains(steers) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len() + 16);
    for letter in json.chars() {
        if steers(letter) {
            // Writing to a `String` cannot fail.
            let _ = write!(escaped, "\\u{:04x}", u32::from(letter));
        } else {
            escaped.push(letter);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::event_fields::MAX_BYTES;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the database failed")]
    struct Outer(#[source] std::io::Error);

    fn logged(log: impl FnOnce()) -> Vec<Value> {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .event_format(JsonLines)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, log);
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    #[test]
    fn logs_errors_with_causes() {
        let error = Outer(std::io::Error::other("disk I/O error"));
        let lines = logged(|| {
            tracing::error!(error = &error as &dyn Error, run.id = %7, grace_ms = 5_u128, "it {}", "broke");
        });
        let [line] = &lines[..] else {
            panic!("{lines:?}")
        };
        assert_eq!(line["error"], "the database failed: disk I/O error");
        assert_eq!(line["message"], "it broke");
        assert_eq!(
            (&line["run.id"], &line["grace_ms"]),
            (&json!("7"), &json!(5))
        );
        assert_eq!(line["level"], "ERROR");
        let time = line["timestamp"].as_str().unwrap();
        assert!(time.ends_with('Z') && time.contains('T'), "{time}");
    }

    #[test]
    fn log_lines_are_single_and_bounded() {
        let hostile = format!(
            "a\n{{\"level\":\"x\"}}\r\u{1b}[31m\u{2028}{}",
            "é".repeat(9000)
        );
        let lines = logged(|| tracing::info!(name = hostile, "{hostile}"));
        assert_eq!(lines.len(), 1);
        for field in ["name", "message"] {
            let text = lines[0][field].as_str().unwrap();
            assert!(text.starts_with("a\n{") && text.ends_with('…'), "{text}");
            assert!(text.len() <= MAX_BYTES + 3);
        }
    }
    #[test]
    fn escapes_control_characters_above_ascii() {
        let text = "\u{7f}a\u{9b}2J\u{9f}\u{a0}天";
        let json = json!({ "text": text }).to_string();
        let escaped = for_terminals(&json);
        assert_eq!(escaped, "{\"text\":\"\\u007fa\\u009b2J\\u009f\u{a0}天\"}");
        assert_eq!(
            serde_json::from_str::<Value>(&escaped).unwrap()["text"],
            text
        );
    }
}
