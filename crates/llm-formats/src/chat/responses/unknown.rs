//! Items of a type that the gateway or the target provider does not know. A client repeats its complete history, so one
//! such item must not end the session: its text stays, and the rest is left out.

use serde_json::{Value, json};

use super::ProviderApi;

/// Item types that the gateway reads.
const READABLE: [&str; 8] = [
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "additional_tools",
    "item_reference",
];
/// Item types that a Responses provider reads, in addition.
const OF_RESPONSES: [&str; 2] = ["compaction", "compaction_summary"];
/// Members of an item, and of its parts, that hold text.
const TEXTS: [&str; 7] = [
    "text", "content", "output", "summary", "refusal", "stdout", "stderr",
];
/// Maximum depth of a text below its item.
const DEPTH: usize = 4;
/// Maximum characters of a type in the log.
const KIND_CHARS: usize = 40;

/// Returns the type of an item. A message needs none.
pub(super) fn kind_of(item: &Value) -> &str {
    match &item["type"] {
        Value::Null if item["role"].is_string() => "message",
        kind => kind.as_str().unwrap_or_default(),
    }
}

/// Returns true for an item with a type that the target does not read.
pub(super) fn is_unknown(item: &Value, target: ProviderApi) -> bool {
    let kind = kind_of(item);
    let is_own = target == ProviderApi::Responses && OF_RESPONSES.contains(&kind);
    // An item without a type is a fault that the reader reports.
    !kind.is_empty() && !READABLE.contains(&kind) && !is_own
}

/// Returns the text of an unknown item as a message. `None`: it has no text.
pub(super) fn message_of(item: &Value) -> Option<Value> {
    let mut texts = Vec::new();
    add_texts(item, DEPTH, &mut texts);
    let role = item["role"].as_str();
    // Another role, such as `tool`, needs members that this item does not have.
    let role = role.filter(|role| ["assistant", "system", "developer"].contains(role));
    let role = role.unwrap_or("user");
    let text = texts.join("\n");
    (!text.is_empty()).then(|| json!({"type": "message", "role": role, "content": text}))
}

fn add_texts<'a>(value: &'a Value, depth: usize, texts: &mut Vec<&'a str>) {
    // Bounded, since the client controls the nesting.
    let Some(depth) = depth.checked_sub(1) else {
        return;
    };
    for member in TEXTS.iter().filter_map(|name| value.get(*name)) {
        match member {
            Value::String(text) if !text.is_empty() => texts.push(text),
            Value::Array(parts) => parts.iter().for_each(|part| add_texts(part, depth, texts)),
            part => add_texts(part, depth, texts),
        }
    }
}

/// Returns the type of an item for the log: a name without other characters.
pub(super) fn logged_kind(item: &Value) -> String {
    let letters = kind_of(item).chars();
    let letters =
        letters.filter(|letter| letter.is_ascii_alphanumeric() || "_-.".contains(*letter));
    letters.take(KIND_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_items_keep_their_text() {
        let text =
            |role: &str, text: &str| json!({"type": "message", "role": role, "content": text});
        for (item, expected) in [
            (
                json!({"type": "agent_message", "author": "a", "content": [
                    {"type": "input_text", "text": "ping"}, {"type": "encrypted_content", "encrypted_content": "x"}]}),
                Some(text("user", "ping")),
            ),
            (
                json!({"type": "note", "role": "developer", "content": "be short"}),
                Some(text("developer", "be short")),
            ),
            (
                json!({"type": "local_shell_call_output", "id": "i", "output": "a.txt"}),
                Some(text("user", "a.txt")),
            ),
            (
                json!({"type": "shell_call_output", "output": [{"stdout": "a", "stderr": "b", "outcome": {}}]}),
                Some(text("user", "a\nb")),
            ),
            (
                json!({"type": "image_generation_call", "result": "AAAA"}),
                None,
            ),
            (
                json!({"type": "web_search_call", "action": {"query": "q"}}),
                None,
            ),
        ] {
            assert!(is_unknown(&item, ProviderApi::Chat), "{item}");
            assert_eq!(message_of(&item), expected, "{item}");
        }
        let compaction = json!({"type": "compaction", "encrypted_content": "x"});
        assert!(is_unknown(&compaction, ProviderApi::Chat));
        assert!(!is_unknown(&compaction, ProviderApi::Responses));
        assert!(!is_unknown(
            &json!({"role": "user", "content": "x"}),
            ProviderApi::Chat
        ));
        assert_eq!(logged_kind(&json!({"type": "a\nb_c"})), "ab_c");
    }
}
