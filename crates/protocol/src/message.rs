//! Messages of models, runners and clients.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::JsonObject;

/// A complete message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Message {
    /// `assistant`, `user`, `system` or `tool`.
    pub role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<MessageContent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::lists::bounded_if_any")]
    pub tool_calls: Option<Vec<ToolCall>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resp_message_id: Option<String>,
    /// Provider data of a model's answer. Send the message back unchanged in the next request: the gateway
    /// forwards these fields only to the same model.
    ///
    /// - `finish_reason` of the answer.
    /// - Unknown members of the provider's message, such as signatures; at most 64 KiB.
    /// - The model's reasoning before tool calls, in the provider's format (`reasoning_content`, `reasoning`,
    ///   `reasoning_details`); at most 256 KiB.
    /// - `model`, the model that produced them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub provider_specific_fields: Option<JsonObject>,
}

impl Message {
    /// Creates a message of plain text.
    pub fn text(role: &str, text: impl Into<String>) -> Self {
        Self {
            role: role.to_owned(),
            name: None,
            content: Some(MessageContent::Text(text.into())),
            tool_calls: None,
            tool_call_id: None,
            resp_message_id: None,
            provider_specific_fields: None,
        }
    }

    /// Returns the text of the message without its other parts.
    pub fn plain_text(&self) -> String {
        self.content
            .as_ref()
            .map(MessageContent::plain_text)
            .unwrap_or_default()
    }
}

/// Text, or a list of parts.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
// A copy: the caller often stores the text longer than the message.
pub enum MessageContent {
    Text(String),
    #[serde(deserialize_with = "crate::lists::bounded")]
    Parts(Vec<ContentElement>),
}

impl MessageContent {
    /// Returns all text in order.
    pub fn plain_text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            // Without separator: parts are fragments of one text, as models send them.
            Self::Parts(parts) => parts
                .iter()
                .filter_map(|part| part.text.as_deref())
                .collect(),
        }
    }
}

// A derived implementation buffers the content before it selects a variant, and its errors have no path.
impl<'de> Deserialize<'de> for MessageContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // `deserialize_any` passes the value to the visitor directly, without an intermediate copy.
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = MessageContent;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list of parts")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<MessageContent, E> {
        // A borrowed text: the document is in memory as one buffer.
        Ok(MessageContent::Text(text.to_owned()))
    }

    fn visit_string<E: de::Error>(self, text: String) -> Result<MessageContent, E> {
        Ok(MessageContent::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<MessageContent, A::Error> {
        // Not sized by the peer's hint.
        Vec::deserialize(SeqAccessDeserializer::new(parts)).map(MessageContent::Parts)
    }
}

/// One part of a message. `type` is `text`, `image_url`, `image_base64`, `file_url`, `file_base64` or free.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ContentElement {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_url: Option<ImageUrl>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file_name: Option<String>,
}

impl ContentElement {
    /// Creates a part of type `text`.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            kind: "text".to_owned(),
            text: Some(text.into()),
            ..Self::default()
        }
    }
}

/// Location of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImageUrl {
    pub url: String,
}

/// A tool call. All four texts are required and never null, also in stream deltas.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ToolCall {
    pub id: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub function: FunctionCall,
    /// Unknown members of the provider's call, such as signatures, with the `model` that produced them; at most
    /// 64 KiB. Unknown members of its function are under `function`. Send them back unchanged with the tool
    /// results: the gateway forwards them only to the same model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub provider_specific_fields: Option<JsonObject>,
}

/// Function of a tool call. `arguments` is a JSON text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FunctionCall {
    pub name: String,
    pub arguments: String,
}

/// A fragment of a message. `content` is an increment. `all_content` is the complete text so far and takes
/// precedence.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageChunk {
    pub role: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<MessageContent>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub all_content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[serde(deserialize_with = "crate::lists::bounded_if_any")]
    pub tool_calls: Option<Vec<ToolCall>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resp_message_id: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_final: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msg_sequence: Option<i64>,
    /// Provider data, in the last chunk of a model's answer. See [`Message`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub provider_specific_fields: Option<JsonObject>,
}

/// Token usage. An absent field is unknown, not 0. Other fields are kept unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LlmTokenUsage {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_tokens: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<i64>,
    #[serde(flatten)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub further: JsonObject,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_errors_name_accepted_forms() {
        let read = serde_json::from_str::<Message>;
        let text = read(r#"{"role": "user", "content": "größ\u0065r"}"#).unwrap();
        assert_eq!(text.plain_text(), "größer");
        let parts = r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "x"}, {"type": "text", "text": "b"}]}"#;
        assert_eq!(read(parts).unwrap().plain_text(), "ab");
        for none in [
            r#"{"role": "tool"}"#,
            r#"{"role": "tool", "content": null}"#,
        ] {
            assert_eq!(read(none).unwrap().content, None);
        }
        let number = read(r#"{"role": "user", "content": 1}"#).unwrap_err();
        assert!(
            number
                .to_string()
                .contains("expected a text or a list of parts"),
            "{number}"
        );
        let part = read(r#"{"role": "user", "content": [{"text": "a"}]}"#).unwrap_err();
        assert!(part.to_string().contains("missing field `type`"), "{part}");
    }
}
