//! Canonical JSON: sorted keys, no spaces. What is hashed or compared is written this way.

use serde::Serialize;
use serde_json::Value;

/// The canonical text of a value.
pub fn canonical_json<T: Serialize>(value: &T) -> String {
    let value = serde_json::to_value(value).expect("our own types have string keys only");
    let mut text = Vec::with_capacity(256);
    write(&value, &mut text);
    String::from_utf8(text).expect("JSON is UTF-8")
}

fn write(value: &Value, text: &mut Vec<u8>) {
    match value {
        Value::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| key.as_str());
            text.push(b'{');
            for (index, (key, value)) in entries.into_iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                write_plain(key, text);
                text.push(b':');
                write(value, text);
            }
            text.push(b'}');
        }
        Value::Array(items) => {
            text.push(b'[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    text.push(b',');
                }
                write(item, text);
            }
            text.push(b']');
        }
        other => write_plain(other, text),
    }
}

fn write_plain<T: Serialize + ?Sized>(value: &T, text: &mut Vec<u8>) {
    serde_json::to_writer(text, value).expect("texts and numbers always serialise");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_are_sorted_at_every_depth_and_nothing_is_spaced() {
        let value = json!({"b": [{"z": 1, "a": "\n"}], "a": null});
        assert_eq!(
            canonical_json(&value),
            r#"{"a":null,"b":[{"a":"\n","z":1}]}"#
        );
    }
}
