//! The configuration of a Dify application.

use protocol::JsonObject;
use secrecy::SecretString;
use url::Url;

use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::Mapped;

const BASE_URL: &str = "https://api.dify.ai/v1";
const BASE_PROMPT: &str = "Read the attached files, or describe the attached images, and answer.";
const TEXT_INPUT: &str = "langbot_user_message_text";

/// The kind of an application. Chatflows are chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DifyAppType {
    Chat,
    Agent,
    Workflow,
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    pub(super) key: SecretString,
    pub(super) app: DifyAppType,
    pub(super) base_prompt: String,
    pub(super) text_input: String,
    pub(super) inputs: JsonObject,
    /// The input variable for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        reader.ignore(LEGACY_KEYS);
        let apps = [
            ("chat", DifyAppType::Chat),
            ("agent", DifyAppType::Agent),
            ("workflow", DifyAppType::Workflow),
        ];
        Ok(Self {
            base: reader.base_url("base-url", BASE_URL)?,
            key: reader.required_secret("api-key")?,
            app: reader.choice("app-type", &apps)?,
            base_prompt: reader.text_or("base-prompt", BASE_PROMPT)?,
            text_input: reader.text_or("text-input", TEXT_INPUT)?,
            inputs: reader.object_with_secrets("inputs")?,
            host_tools: reader.host_tools()?,
        })
    }
}
