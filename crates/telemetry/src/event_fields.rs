//! Fields of log events: errors with all their causes, texts of bounded length.

use std::error::Error;
use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};

/// Maximum size of one field. A longer value is cut and marked.
pub(crate) const MAX_BYTES: usize = 4096;

/// By name; `message` is the text of the event.
#[derive(Default)]
pub(crate) struct EventFields(pub(crate) Map<String, Value>);

impl EventFields {
    fn enter(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }

    fn text(&mut self, field: &Field, mut text: String) {
        if text.len() > MAX_BYTES {
            // A cut inside a character would make the line invalid UTF-8.
            let end = text.floor_char_boundary(MAX_BYTES);
            text.truncate(end);
            text.push('…');
        }
        self.enter(field, text);
    }
}

impl Visit for EventFields {
    fn record_error(&mut self, field: &Field, error: &(dyn Error + 'static)) {
        let mut text = error.to_string();
        let mut next = error.source();
        // A chain of causes may be long; the field is cut at this length anyway.
        while let Some(cause) = next.filter(|_| text.len() <= MAX_BYTES) {
            let message = cause.to_string();
            // A wrapping error often repeats its cause.
            if !text.ends_with(&message) {
                text = format!("{text}: {message}");
            }
            next = cause.source();
        }
        self.text(field, text);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field, value.to_owned());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.enter(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.enter(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.enter(field, value);
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        // JSON numbers of this size would lose digits in most readers.
        self.enter(field, u64::try_from(value).unwrap_or(u64::MAX));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.enter(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field, format!("{value:?}"));
    }
}
