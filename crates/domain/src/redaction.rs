//! Redaction of agent configurations and answers for readers that must see no secret.

use protocol::JsonObject;
use protocol::interaction::{InteractionField, InteractionFieldType};
use serde_json::Value;

/// A member whose name contains one of these words may hold a secret.
const SECRET_WORDS: [&str; 6] = [
    "secret",
    "token",
    "key",
    "password",
    "credential",
    "authorization",
];
/// Replaces a text.
const REDACTED: &str = "***";

/// Replaces all texts in members whose names suggest a secret. Other texts stay: a configuration has no marks of
/// secrets.
pub fn redact_config(config: &mut JsonObject) {
    for (name, value) in config {
        if suggests_secret(name) {
            redact_texts(value);
        } else {
            redact_members(value);
        }
    }
}

/// Replaces the texts of an answer to fields whose id or label suggests a secret. Chosen options stay: the question
/// shows them.
pub fn redact_answer(values: &mut JsonObject, fields: &[InteractionField]) {
    for field in fields {
        let is_text = matches!(
            field.kind,
            InteractionFieldType::Text | InteractionFieldType::Textarea
        );
        let is_secret = suggests_secret(&field.id) || suggests_secret(&field.label);
        if let Some(value) = values.get_mut(&field.id).filter(|_| is_text && is_secret) {
            redact_texts(value);
        }
    }
}

fn suggests_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

fn redact_members(value: &mut Value) {
    match value {
        Value::Object(members) => redact_config(members),
        Value::Array(items) => items.iter_mut().for_each(redact_members),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn redact_texts(value: &mut Value) {
    match value {
        Value::String(text) => REDACTED.clone_into(text),
        Value::Object(members) => members.values_mut().for_each(redact_texts),
        Value::Array(items) => items.iter_mut().for_each(redact_texts),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn redacts_texts_of_members_with_secret_names() {
        let config = json!({
            "prompt": "hi", "max_tokens": 9, "API_Key": "k", "tools": [{"auth_token": "t", "name": "n"}],
            "credentials": {"user": "u", "parts": ["p", 1]},
        });
        let Value::Object(mut config) = config else {
            unreachable!()
        };
        redact_config(&mut config);
        let expected = json!({
            "prompt": "hi", "max_tokens": 9, "API_Key": "***", "tools": [{"auth_token": "***", "name": "n"}],
            "credentials": {"user": "***", "parts": ["***", 1]},
        });
        assert_eq!(Value::Object(config), expected);
    }

    #[test]
    fn redacts_texts_of_secret_fields_only() {
        let fields = json!([
            {"id": "a", "label": "Your password", "type": "text"},
            {"id": "api_key", "label": "Which one?", "type": "select", "options": [{"value": "x", "label": "X"}]},
            {"id": "token", "label": "Text", "type": "textarea"}, {"id": "room", "label": "Room", "type": "text"},
        ]);
        let fields: Vec<InteractionField> = serde_json::from_value(fields).unwrap();
        let Value::Object(mut values) =
            json!({"a": "p", "api_key": "x", "token": "t", "room": "r", "more": 1})
        else {
            unreachable!()
        };
        redact_answer(&mut values, &fields);
        let expected = json!({"a": "***", "api_key": "x", "token": "***", "room": "r", "more": 1});
        assert_eq!(Value::Object(values), expected);
    }
}
