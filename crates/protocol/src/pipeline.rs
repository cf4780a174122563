//! Query of a bot pipeline in LangBot's format: the body of `POST /v1/adapters/pipeline/queries`.

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::message::Message;

/// One message in a bot's pipeline.
///
/// The format is LangBot's and grows with it. No field grants anything, so unlisted fields are ignored. They
/// include `pipeline_config`, `messages` and `use_funcs`: the gateway takes configuration, history and tools
/// from the agent and the transcript. A listed field must have its type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PipelineQuery {
    /// A text is the event's id. LangBot restarts numbers with each process. The adapter makes a number unique
    /// by pipeline, bot, launcher, sender, message and time.
    pub query_id: Identifier,
    /// Overrides the event's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_uuid: Option<String>,
    /// `person`, `group`, or a platform-specific type.
    pub launcher_type: String,
    pub launcher_id: Identifier,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_id: Option<Identifier>,
    /// Event of the platform: `type`, `time`, `sender`. Its short scalar values become the event's data.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub message_event: JsonObject,
    /// Elements of the message.
    #[serde(default)]
    #[serde(deserialize_with = "crate::lists::bounded")]
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub message_chain: Vec<MessageElement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_uuid: Option<String>,
    /// Pipeline id, which agents match by `filters.pipeline_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline_uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<PipelineSession>,
    /// The message after preprocessing. Its content takes precedence over the message chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_message: Option<Message>,
    /// The effective prompt, at most 256 KiB. The runner pulls it; the context does not contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PipelinePrompt>,
    /// Pipeline variables. Public variables become `ctx.adapter.extra.params`, at most 64 KiB. At any depth,
    /// names are private that start with `_` or contain secret, token, key, password or credential.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub variables: Option<JsonObject>,
}

/// An id: text or an integer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "must be text or an integer")]
pub enum Identifier {
    Number(i64),
    Text(String),
}

impl Identifier {
    /// Returns the id as text. -1 and an empty text mean no id.
    pub fn as_id(&self) -> Option<String> {
        match self {
            // LangBot sends -1 for an unset number.
            Self::Number(-1) => None,
            Self::Number(number) => Some(number.to_string()),
            Self::Text(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        }
    }
}

/// Session of a launcher, reduced to its conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PipelineSession {
    pub using_conversation: Option<PipelineConversation>,
}

/// Conversation of a session. `uuid` is the conversation id. Default: one conversation per launcher.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PipelineConversation {
    pub uuid: Option<String>,
}

/// A prompt after preprocessing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PipelinePrompt {
    #[serde(deserialize_with = "crate::lists::bounded")]
    pub messages: Vec<Message>,
}

/// One element of a message chain. Its `type` determines its fields: `Source`, `Plain`, `At`, `AtAll`, `Image`,
/// `File`, `Voice` or `Quote`. Elements of other types are listed in `ctx.adapter.extra.omitted_elements`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageElement {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, alias = "file_id", skip_serializing_if = "Option::is_none")]
    pub id: Option<Identifier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voice_id: Option<String>,
    #[serde(default, alias = "file_name", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, alias = "file_size", skip_serializing_if = "Option::is_none")]
    pub size: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, alias = "file_path", skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// Target of an `At`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Identifier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<String>,
    /// Author of the message that a `Quote` quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_id: Option<Identifier>,
    /// Elements that a `Quote` quotes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    #[serde(deserialize_with = "crate::lists::bounded")]
    pub origin: Vec<Self>,
}
