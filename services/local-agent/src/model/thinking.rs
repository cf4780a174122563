//! What a model thinks aloud, which is nothing that it needs to read again.

use protocol::message::{Message, MessageContent};

/// The message as it goes back to the model: without `<think>…</think>` where it goes on with tool calls.
pub(crate) fn without_thinking(message: &Message) -> Message {
    let mut message = message.clone();
    if message.tool_calls.is_some()
        && let Some(MessageContent::Text(text)) = &message.content
    {
        let text = strip(text);
        message.content = (!text.is_empty()).then_some(MessageContent::Text(text));
    }
    message
}

fn strip(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(start) = opening(rest) {
        kept.push_str(&rest[..start]);
        let inside = &rest[start..];
        // What is never closed is thought to its end.
        rest = inside
            .find("</think>")
            .map_or("", |end| &inside[end + "</think>".len()..]);
    }
    kept.push_str(rest);
    kept.trim().to_owned()
}

/// Where `<think>` or `<think …>` stands.
fn opening(text: &str) -> Option<usize> {
    let mut places = text.match_indices("<think").map(|(place, _)| place);
    places.find(|place| {
        let next = text[place + "<think".len()..].chars().next();
        next.is_some_and(|next| next == '>' || next.is_whitespace())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinking_goes_and_everything_else_stays() {
        for (text, expected) in [
            ("plain", "plain"),
            ("<think>a</think> b", "b"),
            ("a <think kind=\"x\">b</think>c<think>d</think>", "a c"),
            ("a <think>never closed", "a"),
            ("a <thinker> b", "a <thinker> b"),
        ] {
            assert_eq!(strip(text), expected, "{text}");
        }
    }
}
