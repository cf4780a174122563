//! Parameters of the methods, and messages of the user as the input of an event.

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::context::AgentInput;
use protocol::message::ContentElement;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::input::{FileOfMessage, FileOrigin, MessageParts, RequestTurn, TurnReader};

const PARTS: &str = "/params/message/parts";

/// Parameters of `SendMessage` and `SendStreamingMessage`. Unknown members are ignored, as A2A requires.
#[derive(Deserialize)]
pub(super) struct SendParams {
    pub(super) message: SentMessage,
    #[serde(default)]
    pub(super) configuration: Option<SendConfiguration>,
    #[serde(default)]
    metadata: Option<JsonObject>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SendConfiguration {
    #[serde(default)]
    pub(super) task_push_notification_config: Option<Value>,
    #[serde(default)]
    pub(super) return_immediately: Option<bool>,
}

/// A message of the user.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SentMessage {
    pub(super) message_id: String,
    #[serde(default)]
    context_id: Option<String>,
    #[serde(default)]
    task_id: Option<String>,
    #[serde(default)]
    role: Option<String>,
    pub(super) parts: Vec<A2aPart>,
    #[serde(default)]
    metadata: Option<JsonObject>,
}

/// A part of a message, with one of the four contents.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct A2aPart {
    pub(super) text: Option<String>,
    /// Base64.
    raw: Option<String>,
    url: Option<String>,
    pub(super) data: Option<Value>,
    filename: Option<String>,
    media_type: Option<String>,
}

/// Parameters of the methods on one task.
#[derive(Deserialize)]
pub(super) struct TaskParams {
    pub(super) id: String,
}

impl SendParams {
    /// Checks what no type expresses.
    pub(super) fn faults(&self) -> Option<Fault> {
        let message = &self.message;
        if message.message_id.is_empty() {
            return Some(Fault::new("/params/message/messageId", "is required"));
        }
        let is_user = message.role.as_deref() == Some("ROLE_USER");
        (!is_user).then(|| Fault::new("/params/message/role", "must be ROLE_USER"))
    }

    /// Metadata of the request and of the message, for the event.
    pub(super) fn data(&self) -> JsonObject {
        // Members of the message override those of the request.
        let mut metadata = self.metadata.clone().unwrap_or_default();
        metadata.extend(self.message.metadata.clone().unwrap_or_default());
        let mut data = JsonObject::new();
        if !metadata.is_empty() {
            data.insert("metadata".to_owned(), json!(metadata));
        }
        data
    }
}

impl SentMessage {
    /// The context, if the message names one.
    pub(super) fn context(&self) -> Option<&str> {
        filled(self.context_id.as_deref())
    }

    /// The task, if the message belongs to one.
    pub(super) fn task(&self) -> Option<&str> {
        filled(self.task_id.as_deref())
    }

    /// The parts as the input of an event.
    pub(super) fn input(&self) -> Result<AgentInput, Fault> {
        let mut parts = MessageParts::default();
        for (at, part) in self.parts.iter().enumerate() {
            let element = part.element();
            let element = element.ok_or_else(|| {
                let message = "must have one of text, raw, url and data";
                Fault::new(format!("{PARTS}/{at}"), message)
            })?;
            parts.contents.push(element);
        }
        let mut reader = TurnReader::default();
        reader.add_user(parts);
        match reader.finish(PARTS)?.1 {
            RequestTurn::Message(message) => Ok(message.in_conversation()),
            RequestTurn::Answers(_) => Err(Fault::new(PARTS, "must be a message")),
        }
    }
}

impl A2aPart {
    fn element(&self) -> Option<ContentElement> {
        let source = match (&self.text, &self.raw, &self.url, &self.data) {
            (Some(text), None, None, None) => return Some(ContentElement::text(text)),
            (None, None, None, Some(data)) => return Some(ContentElement::text(data.to_string())),
            (None, Some(raw), None, None) => FileOrigin::Base64(raw),
            (None, None, Some(url), None) => FileOrigin::Url(url),
            _ => return None,
        };
        let file = FileOfMessage {
            source,
            media_type: self.media_type.as_deref(),
            name: filled(self.filename.as_deref()),
        };
        Some(file.into())
    }
}

/// Proto3 clients send absent texts as empty ones.
fn filled(text: Option<&str>) -> Option<&str> {
    text.filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(parts: &Value) -> SentMessage {
        let message = json!({"messageId": "m", "contextId": "", "taskId": "t", "role": "ROLE_USER", "parts": parts});
        serde_json::from_value(message).unwrap()
    }

    #[test]
    fn reads_all_kinds_of_parts() {
        let message = message(&json!([
            {"text": "read"}, {"data": {"n": 1}},
            {"raw": "AAAA", "mediaType": "image/png"},
            {"raw": "AAAA", "mediaType": "text/plain; charset=utf-8", "filename": "a.txt"},
            {"raw": "AAAA"},
            {"url": "https://x/y.png", "mediaType": "image/png"},
            {"url": "https://x/f.pdf", "filename": "f.pdf"},
        ]));
        assert_eq!((message.context(), message.task()), (None, Some("t")));
        let input = message.input().unwrap();
        assert_eq!(input.text.as_deref(), Some("read\n{\"n\":1}"));
        let expected = json!([
            {"type": "text", "text": "read"}, {"type": "text", "text": "{\"n\":1}"},
            {"type": "image_base64", "image_base64": "data:image/png;base64,AAAA"},
            {"type": "file_base64", "file_base64": "data:text/plain;base64,AAAA", "file_name": "a.txt"},
            {"type": "file_base64", "file_base64": "AAAA"},
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
            {"type": "file_url", "file_url": "https://x/f.pdf", "file_name": "f.pdf"},
        ]);
        assert_eq!(serde_json::to_value(&input.contents).unwrap(), expected);
    }

    #[test]
    fn parts_have_one_content() {
        for part in [json!({}), json!({"text": "a", "url": "https://x"})] {
            let fault = message(&json!([{"text": "a"}, part])).input().unwrap_err();
            assert_eq!(fault.pointer, "/params/message/parts/1");
        }
        let fault = message(&json!([])).input().unwrap_err();
        assert_eq!(fault.pointer, PARTS);
    }
}
