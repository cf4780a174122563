//! The configuration of an A2A agent.

use url::Url;

use crate::request::Credential;
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::Mapped;

/// The protocol of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Binding {
    JsonRpc,
    HttpJson,
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) base: Url,
    /// Target of the calls; then no card is read.
    pub(super) endpoint: Option<Url>,
    /// Absent: the first supported one of the card.
    pub(super) binding: Option<Binding>,
    pub(super) tenant: String,
    /// The header with the credential, and its complete value.
    pub(super) credential: Option<Credential>,
    /// The member of the request's metadata for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Mapped<Self> {
        let bindings = [
            ("auto", None),
            ("jsonrpc", Some(Binding::JsonRpc)),
            ("http-json", Some(Binding::HttpJson)),
        ];
        // `url` requires a value, and the key is optional.
        let has_endpoint = !reader.text("endpoint")?.is_empty();
        let endpoint = has_endpoint
            .then(|| reader.url("endpoint", ""))
            .transpose()?;
        Ok(Self {
            base: reader.base_url("base-url", "")?,
            endpoint,
            binding: reader.choice("binding", &bindings)?,
            tenant: reader.text("tenant")?,
            credential: reader.credential(&["authorization", "x-api-key", "api-key"])?,
            host_tools: reader.host_tools()?,
        })
    }
}
