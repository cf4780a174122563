//! Binary content in tool results: replaced, because a model cannot read the bytes.

use serde_json::{Value, json};

/// Result with sizes in place of binary MCP blocks. `None` when it has none.
pub(super) fn without_bytes(result: &Value) -> Option<Value> {
    let mut replaced = result.clone();
    let blocks = match &mut replaced {
        Value::Array(blocks) => blocks,
        Value::Object(result) => result.get_mut("content")?.as_array_mut()?,
        _ => return None,
    };
    let mut has_changed = false;
    // Not `any`, which would stop at the first changed block.
    for block in blocks {
        has_changed |= leave_out(block);
    }
    has_changed.then_some(replaced)
}

fn leave_out(block: &mut Value) -> bool {
    let (holder, key) = match kind_of(block) {
        Some("image" | "audio") => (Some(block), "data"),
        Some("resource") => (block.get_mut("resource"), "blob"),
        _ => return false,
    };
    let Some(holder) = holder.and_then(Value::as_object_mut) else {
        return false;
    };
    let Some(Value::String(data)) = holder.get(key) else {
        return false;
    };
    // Three bytes per four characters, without the padding.
    let bytes = data.trim_end_matches('=').len() * 3 / 4;
    holder.remove(key);
    holder.insert("omitted_bytes".to_owned(), json!(bytes));
    true
}

/// Text for the model in place of a binary block.
pub(super) fn note(block: &Value) -> Option<String> {
    let kind = kind_of(block)?;
    // MCP nests the fields of an embedded resource one level deeper.
    let holder = block.get("resource").unwrap_or(block);
    let bytes = holder.get("omitted_bytes")?;
    let text = |key: &str| holder.get(key).and_then(Value::as_str);
    let media = text("mimeType").map_or_else(String::new, |media| format!(" {media}"));
    let uri = text("uri").map_or_else(String::new, |uri| format!(" {uri}"));
    Some(format!(
        "[{kind}{media}{uri} of {bytes} bytes, which are not shown here]"
    ))
}

fn kind_of(block: &Value) -> Option<&str> {
    block.get("type").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_binary_data_with_note() {
        let result = json!({"content": [
            {"type": "text", "text": "here"},
            {"type": "image", "data": "QUJD", "mimeType": "image/png"},
            {"type": "audio", "data": "QUI="},
            {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "a/b", "blob": "QQ=="}},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "b"}},
        ]});
        let replaced = without_bytes(&result).unwrap();
        let blocks = replaced["content"].as_array().unwrap();
        let notes: Vec<_> = blocks.iter().map(note).collect();
        let expected = [
            None,
            Some("[image image/png of 3 bytes, which are not shown here]"),
            Some("[audio of 2 bytes, which are not shown here]"),
            Some("[resource a/b file:///a of 1 bytes, which are not shown here]"),
            None,
        ];
        assert_eq!(notes, expected.map(|note| note.map(str::to_owned)));
        assert!(!replaced.to_string().contains("QUJD"));
    }

    #[test]
    fn keeps_results_without_binary_data() {
        for result in [
            json!("QUJD"),
            json!({"data": "QUJD"}),
            json!({"content": "QUJD"}),
            json!([{"type": "text", "text": "a"}, {"type": "image"}, "image", 7]),
        ] {
            assert_eq!(without_bytes(&result), None, "{result}");
        }
    }
}
