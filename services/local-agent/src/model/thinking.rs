//! Reasoning of a model: shown to the user on demand, never sent back as text.

use protocol::message::{Message, MessageContent};
use protocol::thinking;

/// Message for the model without reasoning text. Reasoning that the provider requires with tool results stays in
/// `provider_specific_fields`.
pub(crate) fn without_thinking(message: &Message) -> Message {
    let mut message = message.clone();
    if message.role != "assistant" {
        return message;
    }
    match &mut message.content {
        Some(MessageContent::Text(text)) => {
            let visible = thinking::without_thinking(text);
            // Trimmed only if something was removed: other texts stay byte for byte.
            if visible.len() < text.len() {
                visible.trim().clone_into(text);
            }
            // Some providers reject an empty text; no content is valid next to tool calls.
            if text.is_empty() {
                message.content = None;
            }
        }
        Some(MessageContent::Parts(parts)) => {
            for text in parts.iter_mut().filter_map(|part| part.text.as_mut()) {
                *text = thinking::without_thinking(text);
            }
            parts.retain(|part| part.text.as_deref() != Some(""));
        }
        None => {}
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_thinking_and_keeps_other_text() {
        for (text, expected) in [
            ("plain ", "plain "),
            ("<think>a</think> b", "b"),
            ("a <think kind=\"x\">b</think>c<think>d</think>", "a c"),
            ("a <think>never closed", "a"),
            ("a <thinker> b", "a <thinker> b"),
            ("thoughts</think>b", "b"),
            ("<think>only</think>", ""),
        ] {
            let message = without_thinking(&Message::text("assistant", text));
            assert_eq!(message.plain_text(), expected, "{text}");
        }
        let user = Message::text("user", "<think>a</think>b");
        assert_eq!(without_thinking(&user), user);
    }
}
