//! Redaction of agent configurations for readers that must see no secret.

use protocol::JsonObject;
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
        let name = name.to_ascii_lowercase();
        if SECRET_WORDS.iter().any(|word| name.contains(word)) {
            redact_texts(value);
        } else {
            redact_members(value);
        }
    }
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
}
