//! The configuration of an AG-UI agent.

use protocol::JsonObject;
use secrecy::SecretString;
use url::Url;

use crate::upstream::config::ConfigReader;
use crate::upstream::failure::ConnectorFailure;

#[derive(Debug)]
pub(super) struct Config {
    pub(super) url: Url,
    /// The header with the credential, and its complete value.
    pub(super) credential: Option<(&'static str, SecretString)>,
    /// Number of earlier messages to send.
    pub(super) history: u32,
    pub(super) forwarded: JsonObject,
    /// The forwarded property for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Result<Self, ConnectorFailure> {
        let headers = [
            ("authorization", "authorization"),
            ("x-api-key", "x-api-key"),
        ];
        let credential = reader.credential(&headers)?;
        let history = reader.integer("history", 20, 0..=100)?;
        Ok(Self {
            url: reader.url("url", "")?,
            credential,
            history: u32::try_from(history).unwrap_or(u32::MAX),
            forwarded: reader.object_with_secrets("forwarded-props")?,
            host_tools: reader.host_tools()?,
        })
    }
}
