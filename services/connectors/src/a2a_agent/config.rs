//! The configuration of an A2A agent.

use secrecy::SecretString;
use url::Url;

use crate::upstream::config::ConfigReader;
use crate::upstream::failure::ConnectorFailure;

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
    pub(super) credential: Option<(&'static str, SecretString)>,
    pub(super) resend_history: u32,
    /// The member of the request's metadata for the run token.
    pub(super) host_tools: Option<String>,
}

impl Config {
    pub(super) fn read(reader: &mut ConfigReader<'_>) -> Result<Self, ConnectorFailure> {
        let bindings = [
            ("auto", None),
            ("jsonrpc", Some(Binding::JsonRpc)),
            ("http-json", Some(Binding::HttpJson)),
        ];
        let headers = [
            ("authorization", "authorization"),
            ("x-api-key", "x-api-key"),
            ("api-key", "api-key"),
        ];
        // `url` requires a value, and the key is optional.
        let has_endpoint = !reader.text("endpoint")?.is_empty();
        let endpoint = has_endpoint
            .then(|| reader.url("endpoint", ""))
            .transpose()?;
        let resend_history = reader.integer("resend-history", 0, 0..=100)?;
        let credential = reader.credential(&headers)?;
        Ok(Self {
            base: reader.base_url("base-url", "")?,
            endpoint,
            binding: reader.choice("binding", &bindings)?,
            tenant: reader.text("tenant")?,
            credential,
            resend_history: u32::try_from(resend_history).unwrap_or(u32::MAX),
            host_tools: reader.host_tools()?,
        })
    }
}
