//! The configuration of an OpenAI-compatible agent.

use protocol::JsonObject;
use url::Url;

use crate::request::Credential;
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::{ConnectorFailure, Mapped};

/// The API of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenAiApi {
    Chat,
    Responses,
}

/// The side that creates conversation ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConversationOrigin {
    Ours,
    Theirs,
}

/// The body field for the conversation's id.
#[derive(Debug)]
pub(super) struct ConversationField {
    pub(super) name: String,
    pub(super) origin: ConversationOrigin,
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    /// The header with the credential, and its complete value.
    pub(super) credential: Option<Credential>,
    pub(super) api: OpenAiApi,
    pub(super) model: String,
    pub(super) instructions: String,
    pub(super) conversation: Option<ConversationField>,
    pub(super) user_field: String,
    /// Send `previous_response_id`.
    pub(super) chains_responses: bool,
    pub(super) extra: JsonObject,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        let base = reader.base_url("base-url", "")?;
        let api = reader.choice(
            "api",
            &[
                ("chat-completions", OpenAiApi::Chat),
                ("responses", OpenAiApi::Responses),
            ],
        )?;
        let field = reader.text("conversation-field")?;
        let origin = reader.choice(
            "conversation-id",
            &[
                ("ours", ConversationOrigin::Ours),
                ("theirs", ConversationOrigin::Theirs),
            ],
        )?;
        let chains_responses = reader.flag("previous-response")?.unwrap_or_default();
        if chains_responses && api != OpenAiApi::Responses {
            return Err(ConnectorFailure::config(
                "previous-response",
                "needs `api` to be responses",
            ));
        }
        if chains_responses && !field.is_empty() {
            return Err(ConnectorFailure::config(
                "previous-response",
                "and /conversation-field exclude each other",
            ));
        }
        Ok(Self {
            base,
            credential: reader.credential(&["authorization", "x-api-key", "api-key"])?,
            api,
            model: reader.text("model")?,
            instructions: reader.text("instructions")?,
            conversation: (!field.is_empty()).then_some(ConversationField {
                name: field,
                origin,
            }),
            user_field: reader.text("user-field")?,
            chains_responses,
            extra: reader.object_with_secrets("extra-body")?,
        })
    }

    /// True if the server stores the conversation.
    pub(super) fn keeps_conversation(&self) -> bool {
        self.conversation.is_some() || self.chains_responses
    }
}
