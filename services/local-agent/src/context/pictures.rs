//! Pictures that are artifacts of the gateway. The gateway inserts them into model requests where the run may
//! read them; a request with an unreadable reference is rejected.

use protocol::context::AgentRunContext;
use protocol::message::{ContentElement, Message, MessageContent};

use crate::context::estimate::is_attachment;

/// URL scheme before the artifact id.
const SCHEME: &str = "artifact:";
/// Longer URLs are left out of descriptions.
const MOST_URL_BYTES: usize = 500;

/// Current user message, with pictures that the run may read.
pub fn of_now(message: Message, context: &AgentRunContext) -> Message {
    if context.context.available_apis.artifact_read {
        message
    } else {
        describe(message)
    }
}

/// Earlier message: pictures become descriptions, because they may be deleted by now.
pub fn describe(mut message: Message) -> Message {
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

/// Replaces all pictures and files by descriptions; false when there are none.
pub fn describe_all(message: &mut Message) -> bool {
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

/// False for data URLs and other long values.
fn is_short(url: &str) -> bool {
    url.len() <= MOST_URL_BYTES && !url.starts_with("data:")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn describes_every_non_text_part() {
        let parts = json!([{"type": "text", "text": "see"},
            {"type": "image_url", "image_url": {"url": "https://a.b/c.png"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            {"type": "image_base64", "image_base64": "AAAA"},
            {"type": "file_base64", "file_base64": "AAAA", "file_name": "a.pdf"},
            {"type": "file_url", "file_url": "https://a.b/d.pdf"}]);
        let message = json!({"role": "user", "content": parts});
        let mut message: Message = serde_json::from_value(message).unwrap();
        assert!(describe_all(&mut message));
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
        assert!(!describe_all(&mut message));
    }

    #[test]
    fn mentions_only_artifact_images() {
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let parts = json!([{"type": "text", "text": "artifact:a"}, image("artifact:a"), image("https://a.b/c.png")]);
        let message = json!({"role": "user", "content": parts});
        let message = describe(serde_json::from_value(message).unwrap());
        let describe: Value = serde_json::to_value(message).unwrap();
        let expected = json!([{"type": "text", "text": "artifact:a"},
            {"type": "text", "text": "[picture artifact:a: not shown]"}, image("https://a.b/c.png")]);
        assert_eq!(describe["content"], expected);
    }
}
