//! The configuration of an AG-UI agent.

use protocol::JsonObject;
use url::Url;

use crate::request::Credential;
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::Mapped;

#[derive(Debug)]
pub(super) struct Config {
    pub(super) url: Url,
    /// The header with the credential, and its complete value.
    pub(super) credential: Option<Credential>,
    pub(super) forwarded: JsonObject,
    /// The forwarded property for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        Ok(Self {
            url: reader.url("url", "")?,
            credential: reader.credential(&["authorization", "x-api-key"])?,
            forwarded: reader.object_with_secrets("forwarded-props")?,
            host_tools: reader.host_tools()?,
        })
    }
}
