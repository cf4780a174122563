//! Pictures that are artifacts of the gateway. It shows them to a model where the run may read them; a request that
//! refers to one that it cannot have is refused whole.

use protocol::context::AgentRunContext;
use protocol::message::{ContentElement, Message, MessageContent};

use crate::context::estimate::is_attachment;

/// What stands before the id, where a URL would stand.
const SCHEME: &str = "artifact:";
/// What is longer tells a model nothing.
const MOST_URL_BYTES: usize = 500;

/// What the user has sent now: with its pictures where the run may read them.
pub fn of_now(message: Message, context: &AgentRunContext) -> Message {
    if context.context.available_apis.artifact_read {
        message
    } else {
        told(message)
    }
}

/// What was said before: its pictures may be gone by now, so they are only told of.
pub fn told(mut message: Message) -> Message {
    if let Some(MessageContent::Parts(parts)) = &mut message.content {
        for part in parts {
            if let Some(image) = part
                .image_url
                .as_ref()
                .filter(|image| image.url.starts_with(SCHEME))
            {
                *part = ContentElement::text(format!("[picture {}: not shown]", image.url));
            }
        }
    }
    message
}

/// Tells of every picture and file instead of showing it; false when there is none.
pub fn tell_all(message: &mut Message) -> bool {
    let mut found = false;
    if let Some(MessageContent::Parts(parts)) = &mut message.content {
        for part in parts.iter_mut().filter(|part| is_attachment(part)) {
            *part = ContentElement::text(note(part));
            found = true;
        }
    }
    found
}

fn note(part: &ContentElement) -> String {
    let name = part.file_name.as_deref();
    let url = part.image_url.as_ref().map(|image| image.url.as_str());
    let kind = if part.file_url.is_some() || part.file_base64.is_some() {
        "file"
    } else {
        "picture"
    };
    match name.or(url.or(part.file_url.as_deref()).filter(|url| is_short(url))) {
        Some(name) => format!("[{kind} {name}: not shown]"),
        None => format!("[{kind}: not shown]"),
    }
}

/// The picture itself may stand where a URL would.
fn is_short(url: &str) -> bool {
    url.len() <= MOST_URL_BYTES && !url.starts_with("data:")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn whatever_is_no_text_can_be_told_of() {
        let parts = json!([{"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_base64", "image_base64": "AAAA"},
            {"type": "file_base64", "file_base64": "AAAA", "file_name": "a.pdf"},
            {"type": "file_url", "file_url": "https://a.b/d.pdf"}]);
        let message = json!({"role": "user", "content": parts});
        let mut message: Message = serde_json::from_value(message).unwrap();
        assert!(tell_all(&mut message));
        let texts = [
            "see",
            "[picture https://a.b/c.png: not shown]",
            "[picture: not shown]",
            "[picture: not shown]",
            "[file a.pdf: not shown]",
            "[file https://a.b/d.pdf: not shown]",
        ];
        let texts: Vec<_> = texts
            .map(|text| json!({"type": "text", "text": text}))
            .into();
        assert_eq!(
            serde_json::to_value(&message).unwrap()["content"],
            json!(texts)
        );
        assert!(!tell_all(&mut message));
    }

    #[test]
    fn only_artifacts_are_told_of_instead_of_shown() {
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let parts = json!([{"type": "text", "text": "artifact:a"}, image("artifact:a"), image("https://a.b/c.png")]);
        let message = json!({"role": "user", "content": parts});
        let message = told(serde_json::from_value(message).unwrap());
        let told: Value = serde_json::to_value(message).unwrap();
        let expected = json!([{"type": "text", "text": "artifact:a"},
            {"type": "text", "text": "[picture artifact:a: not shown]"}, image("https://a.b/c.png")]);
        assert_eq!(told["content"], expected);
    }
}
