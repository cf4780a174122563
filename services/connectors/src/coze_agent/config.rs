//! The configuration of a Coze agent.

use secrecy::SecretString;
use url::Url;

use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::Mapped;

const API_BASE: &str = "https://api.coze.cn";

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    pub(super) key: SecretString,
    pub(super) bot: String,
    /// Coze stores the chat in the conversation.
    pub(super) saves_history: bool,
    /// The custom variable for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        reader.ignore(LEGACY_KEYS);
        Ok(Self {
            base: reader.base_url("api-base", API_BASE)?,
            key: reader.required_secret("api-key")?,
            bot: reader.required("bot-id")?,
            saves_history: reader.flag("auto-save-history")?.unwrap_or(true),
            host_tools: reader.host_tools()?,
        })
    }
}
