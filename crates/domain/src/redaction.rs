//! Redaction of agent configurations and answers for readers that must see no secret.

use protocol::JsonObject;
use protocol::admin::Fault;
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
    each_secret(config, &mut |_, text| REDACTED.clone_into(text));
}

/// Calls `act` with each text in members whose names suggest a secret, and with its JSON pointer in the configuration.
pub fn each_secret(config: &mut JsonObject, act: &mut dyn FnMut(&str, &mut String)) {
    visit_members(config, "", act);
}

/// Puts the secrets of the current configuration into one whose secrets are marks. The faults name secrets of which the
/// current configuration has another value, or none.
pub fn restore_secrets(
    config: &mut JsonObject,
    current: JsonObject,
    mark: impl Fn(&str) -> String,
) -> Vec<Fault> {
    let (current, mut faults) = (Value::Object(current), Vec::new());
    each_secret(config, &mut |pointer, text| {
        let plain = current.pointer(pointer).and_then(Value::as_str);
        // Equal marks mean equal secrets; the mark itself must never become a value.
        match plain.filter(|plain| mark(plain) == *text) {
            Some(plain) => plain.clone_into(text),
            None => faults.push(Fault::new(
                format!("/config{pointer}"),
                "is a secret that has changed since, and the history has no values of secrets; replace the agent by \
                 PUT /v1/agents/{agent_id} with the value",
            )),
        }
    });
    faults
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
            visit_texts(value, "", &mut |_, text| REDACTED.clone_into(text));
        }
    }
}

fn suggests_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    SECRET_WORDS.iter().any(|word| name.contains(word))
}

fn visit_members(members: &mut JsonObject, at: &str, act: &mut dyn FnMut(&str, &mut String)) {
    for (name, value) in members {
        let pointer = child(at, name);
        if suggests_secret(name) {
            visit_texts(value, &pointer, act);
        } else {
            visit_value(value, &pointer, act);
        }
    }
}

fn visit_value(value: &mut Value, at: &str, act: &mut dyn FnMut(&str, &mut String)) {
    match value {
        Value::Object(members) => visit_members(members, at, act),
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                visit_value(item, &format!("{at}/{index}"), act);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn visit_texts(value: &mut Value, at: &str, act: &mut dyn FnMut(&str, &mut String)) {
    match value {
        Value::String(text) => act(at, text),
        Value::Object(members) => {
            for (name, member) in members {
                visit_texts(member, &child(at, name), act);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                visit_texts(item, &format!("{at}/{index}"), act);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// The JSON pointer of a member (RFC 6901).
fn child(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
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
    fn restores_only_secrets_with_equal_marks() {
        let object = |value: Value| match value {
            Value::Object(members) => members,
            _ => unreachable!(),
        };
        let mark = |text: &str| format!("hash:{}", text.len());
        let current = object(json!({"a/b": {"api_key": "four"}, "tokens": ["x"], "prompt": "new"}));
        let mut config = object(json!({
            "a/b": {"api_key": "hash:4"}, "tokens": ["hash:2", "hash:1"], "prompt": "hash:3",
        }));
        let faults = restore_secrets(&mut config, current, mark);
        let pointers: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(pointers, ["/config/tokens/0", "/config/tokens/1"]);
        assert_eq!(config["a/b"], json!({"api_key": "four"}));
        assert_eq!(config["prompt"], "hash:3");
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
