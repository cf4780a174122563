//! A bot pipeline's Query, as LangBot writes it: the body of `POST /v1/adapters/pipeline/queries`.

use serde::{Deserialize, Serialize};

use crate::JsonObject;
use crate::message::Message;

/// One message on its way through a bot's pipeline.
///
/// The Query is LangBot's and grows with it, and no field of it grants anything: fields that are not
/// listed here are ignored (`pipeline_config`, `messages`, `use_funcs` … among them: the runner's
/// configuration is the agent's, its history the transcript, its tools what the agent grants). A listed
/// field must have its type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PipelineQuery {
    /// A text is the event's id. A number, which LangBot counts anew after each start, is made unique by
    /// pipeline, bot, launcher, sender, message and time.
    pub query_id: Identifier,
    /// The event's id when it is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query_uuid: Option<String>,
    /// `person`, `group`, or what else the platform calls it.
    pub launcher_type: String,
    pub launcher_id: Identifier,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_id: Option<Identifier>,
    /// The platform's event: `type`, `time`, `sender`. Its small plain values become the event's data.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub message_event: JsonObject,
    /// What was sent, element by element.
    #[serde(default)]
    #[serde(deserialize_with = "crate::lists::bounded")]
    #[cfg_attr(feature = "openapi", schema(max_items = 1000))]
    pub message_chain: Vec<MessageElement>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bot_uuid: Option<String>,
    /// Agents can ask for it with `filters.pipeline_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pipeline_uuid: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<PipelineSession>,
    /// The message after preprocessing; its content stands above the chain's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_message: Option<Message>,
    /// The effective prompt, at most 256 KiB. Never in the context: the runner asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt: Option<PipelinePrompt>,
    /// The public ones become `ctx.adapter.extra.params`, at most 64 KiB: no name that starts with `_` or
    /// holds secret, token, key, password or credential, at any depth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub variables: Option<JsonObject>,
}

/// An id, as platforms write them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged, expecting = "must be text or a whole number")]
pub enum Identifier {
    Number(i64),
    Text(String),
}

impl Identifier {
    /// The id as text; `None` where the platform says that there is none.
    pub fn known(&self) -> Option<String> {
        match self {
            Self::Number(-1) => None,
            Self::Number(number) => Some(number.to_string()),
            Self::Text(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        }
    }
}

/// The conversation of a launcher, as far as it matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct PipelineSession {
    pub using_conversation: Option<PipelineConversation>,
}

/// Its `uuid` is the conversation's id. Without one the conversation is the launcher's.
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

/// One element of a message chain. Which fields it has is a matter of its `type`: `Source`, `Plain`, `At`,
/// `AtAll`, `Image`, `File`, `Voice`, `Quote`. Elements of other types are named in
/// `ctx.adapter.extra.omitted_elements`.
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
    /// Whom an `At` means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Identifier>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<String>,
    /// Who wrote what a `Quote` quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_id: Option<Identifier>,
    /// What a `Quote` quotes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(no_recursion))]
    #[serde(deserialize_with = "crate::lists::bounded")]
    pub origin: Vec<Self>,
}
