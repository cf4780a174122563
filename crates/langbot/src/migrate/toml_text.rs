//! Writes tables of `runnel.toml` as readable text.

use serde_json::Value;

/// Writes a value as TOML on one line. The value must not contain nulls.
pub fn value(value: &Value) -> String {
    match value {
        // TOML has no null; `without_nulls` removed them.
        Value::Null => String::new(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) => quoted(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(self::value).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) if members.is_empty() => "{}".to_owned(),
        Value::Object(members) => {
            let members: Vec<_> = members
                .iter()
                .map(|(name, item)| format!("{} = {}", key(name), self::value(item)))
                .collect();
            format!("{{ {} }}", members.join(", "))
        }
    }
}

/// Writes a key, quoted if necessary.
pub fn key(name: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    if !name.is_empty() && name.chars().all(is_bare) {
        name.to_owned()
    } else {
        quoted(name)
    }
}

// TOML accepts all JSON escapes, and forbids one more character.
fn quoted(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007F")
}

/// Writes a one-line comment.
pub fn comment(text: &str) -> String {
    // A line break would end the comment and inject settings.
    let plain: String = text
        .chars()
        .map(|letter| if letter.is_control() { ' ' } else { letter })
        .collect();
    format!("# {plain}\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_on_one_line() {
        for (json, text) in [
            (json!(true), "true"),
            (json!(2.5), "2.5"),
            (json!("a\"b\\\n\u{7f}"), r#""a\"b\\\n\u007F""#),
            (json!([1, "x"]), r#"[1, "x"]"#),
            (json!({}), "{}"),
            (
                json!({"a-b": 1, "c d": {"e": []}}),
                r#"{ a-b = 1, "c d" = { e = [] } }"#,
            ),
        ] {
            assert_eq!(value(&json), text);
        }
        assert_eq!(comment("two\nlines"), "# two lines\n");
    }
}
