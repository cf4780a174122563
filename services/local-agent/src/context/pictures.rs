//! Pictures that are artifacts of the gateway. It shows them to a model where the run may read them; a request that
//! refers to one that it cannot have is refused whole.

use protocol::context::AgentRunContext;
use protocol::message::{ContentElement, Message, MessageContent};

/// What stands before the id, where a URL would stand.
const SCHEME: &str = "artifact:";

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

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

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
