//! The configuration of a Coze agent.

use secrecy::SecretString;
use url::Url;

use crate::upstream::config::{ConfigReader, LEGACY_KEYS};
use crate::upstream::failure::ConnectorFailure;

const API_BASE: &str = "https://api.coze.cn";

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    pub(super) key: SecretString,
    pub(super) bot: String,
    /// Coze stores the chat in the conversation.
    pub(super) saves_history: bool,
    pub(super) resend_history: u32,
    /// The custom variable for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Result<Self, ConnectorFailure> {
        reader.ignore(LEGACY_KEYS);
        let resend_history = reader.integer("resend-history", 0, 0..=100)?;
        Ok(Self {
            base: reader.base_url("api-base", API_BASE)?,
            key: reader.required_secret("api-key")?,
            bot: reader.required("bot-id")?,
            saves_history: reader.flag("auto-save-history", true)?,
            resend_history: u32::try_from(resend_history).unwrap_or(u32::MAX),
            host_tools: reader.host_tools()?,
        })
    }
}
