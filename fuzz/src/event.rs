//! An accepted event body is valid on every database and for every parser, and survives a round trip.

use domain::event::{check_posted, completed, contains_nul, conversation_of};
use domain::json_text::check_json_text;
use protocol::event::EventEnvelope;
use serde_json::Value;
use serde_json::value::RawValue;

pub fn check(data: &[u8]) {
    let is_valid = check_json_text(data).is_ok();
    let lazy = serde_json::from_slice::<&RawValue>(data).is_ok();
    let value = serde_json::from_slice::<Value>(data);
    if is_valid {
        assert_eq!(
            lazy,
            value.is_ok(),
            "the lazy parser and the one that builds values"
        );
    }
    if let Ok(value) = &value {
        let text = value.to_string();
        // A JSON value can be rejected only for its depth, its number of values or its NULs.
        if !is_valid {
            assert!(
                check_json_text(text.as_bytes()).is_err() || data.len() > text.len(),
                "{text}"
            );
        }
        assert_eq!(contains_nul(&text), has_nul(value), "{text}");
    }
    if !is_valid {
        return;
    }
    let Ok(event) = serde_json::from_slice::<EventEnvelope>(data) else {
        return;
    };
    if !check_posted(&event).is_empty() {
        return;
    }
    let event = completed(event);
    let text = serde_json::to_string(&event).expect("an event is JSON");
    assert!(!contains_nul(&text), "{text}");
    assert!(
        check_json_text(text.as_bytes()).is_ok(),
        "the serialised event is valid"
    );
    let again: EventEnvelope = serde_json::from_str(&text).expect("a serialised event is read");
    // Floating-point numbers may change in their last digit; everything else stays.
    if !text.contains(['.', 'e', 'E']) {
        assert_eq!(again, event);
    }
    assert_eq!(conversation_of(&again), conversation_of(&event));
    assert!((1..=128).contains(&event.event_type.len()));
    if let Some(id) = &event.event_id {
        assert!((1..=512).contains(&id.len()) && id.is_ascii(), "{id:?}");
    }
}

fn has_nul(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(list) => list.iter().any(has_nul),
        Value::Object(members) => members
            .iter()
            .any(|(key, value)| key.contains('\0') || has_nul(value)),
        _ => false,
    }
}
