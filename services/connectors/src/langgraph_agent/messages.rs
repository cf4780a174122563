//! Messages of the LangChain libraries.

use serde_json::Value;

use crate::upstream::json::filled;

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Author {
    Human,
    Agent,
    Tool,
    Other,
}

pub(super) fn author_of(message: &Value) -> Author {
    let role = ["type", "role"]
        .iter()
        .find_map(|key| message[*key].as_str());
    match role.unwrap_or_default().to_ascii_lowercase().as_str() {
        "ai" | "assistant" | "aimessage" | "aimessagechunk" => Author::Agent,
        "human" | "user" | "humanmessage" | "humanmessagechunk" => Author::Human,
        "tool" | "toolmessage" | "toolmessagechunk" => Author::Tool,
        _ => Author::Other,
    }
}

/// True for a piece of a message.
pub(super) fn is_chunk(message: &Value) -> bool {
    let kind = message["type"].as_str().unwrap_or_default();
    kind.ends_with("Chunk")
}

/// The message's id, or its index in the thread.
pub(super) fn key_of(message: &Value, index: usize) -> String {
    filled(&message["id"]).map_or_else(|| format!("#{index}"), str::to_owned)
}

/// The text of a content: a text, or the text parts of a list.
pub(super) fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| {
                let is_text = matches!(part["type"].as_str(), None | Some("text" | "output_text"));
                part.as_str()
                    .or_else(|| part["text"].as_str().filter(|_| is_text))
            });
            texts.collect()
        }
        _ => String::new(),
    }
}

/// The reasoning in a message.
pub(super) fn reasoning_of(message: &Value) -> String {
    let further = &message["additional_kwargs"]["reasoning_content"];
    let parts = message["content"].as_array().into_iter().flatten();
    let parts = parts.filter_map(|part| match part["type"].as_str() {
        Some("thinking") => part["thinking"].as_str(),
        Some("reasoning") => part["reasoning"].as_str().or_else(|| part["text"].as_str()),
        _ => None,
    });
    further.as_str().into_iter().chain(parts).collect()
}

/// True for messages that only the model should see.
pub(super) fn is_hidden(message: &Value) -> bool {
    message["additional_kwargs"]["hide_from_ui"] == true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn contents_are_texts_or_parts() {
        let parts = json!({"content": ["a", {"type": "text", "text": "b"}, {"type": "thinking", "thinking": "hm"}, {"type": "image_url"}]});
        assert_eq!(
            (text_of(&parts).as_str(), reasoning_of(&parts).as_str()),
            ("ab", "hm")
        );
        let deep = json!({"content": "a", "additional_kwargs": {"reasoning_content": "hm"}});
        assert_eq!(
            (text_of(&deep).as_str(), reasoning_of(&deep).as_str()),
            ("a", "hm")
        );
        assert_eq!(text_of(&json!({"content": null})), "");
    }
}
