//! The agent's card, and the interface that is called.

use serde_json::{Value, json};
use url::Url;

use crate::a2a_agent::config::{Binding, Config};
use crate::a2a_agent::request::authorized;
use crate::request::{PlatformRequest, below};
use crate::upstream::failure::{ConnectorFailure, FailureKind, Mapped};
use crate::upstream::json::filled;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Interface {
    pub(super) url: Url,
    pub(super) binding: Binding,
    pub(super) tenant: String,
    pub(super) streams: bool,
}

impl Interface {
    /// The interface from the configuration.
    pub(super) fn configured(config: &Config) -> Option<Self> {
        Some(Self {
            url: config.endpoint.clone()?,
            binding: config.binding.unwrap_or(Binding::JsonRpc),
            tenant: config.tenant.clone(),
            streams: true,
        })
    }

    /// The interface stored in the state, if it belongs to this configuration.
    pub(super) fn restore(config: &Config, stored: &Value) -> Option<Self> {
        // The operator may have changed the address since the interface was stored.
        if stored["base"] != config.base.as_str() {
            return None;
        }
        Self::of(config, &stored["interface"], stored["streams"] == true).ok()?
    }

    /// The interface of a card, and its form for the state.
    pub(super) fn of_card(config: &Config, card: &Value) -> Mapped<(Self, Value)> {
        let streams = card["capabilities"]["streaming"] == true;
        let listed = card["supportedInterfaces"].as_array();
        for interface in listed.into_iter().flatten() {
            if let Some(read) = Self::of(config, interface, streams)? {
                let stored = json!({"base": config.base.as_str(), "interface": interface, "streams": streams});
                return Ok((read, stored));
            }
        }
        let message = if listed.is_some() {
            "the agent's card lists no interface of A2A 1.x by JSON-RPC or HTTP+JSON"
        } else {
            "the agent's card is of A2A 0.x: update the agent to A2A 1.0"
        };
        Err(ConnectorFailure::new(FailureKind::ApiError, message))
    }

    /// Reads one interface of a card. `None` for another protocol or version.
    fn of(config: &Config, interface: &Value, streams: bool) -> Mapped<Option<Self>> {
        let binding = match interface["protocolBinding"].as_str() {
            Some("JSONRPC") => Binding::JsonRpc,
            Some("HTTP+JSON") => Binding::HttpJson,
            _ => return Ok(None),
        };
        let version = filled(&interface["protocolVersion"]).unwrap_or("1.0");
        let is_wanted = config.binding.is_none_or(|wanted| wanted == binding);
        let Some(url) = filled(&interface["url"]).filter(|_| is_wanted && version.starts_with('1'))
        else {
            return Ok(None);
        };
        let url = config.base.join(url).ok();
        // The credential must only reach the configured host.
        let url = url.filter(|url| url.origin() == config.base.origin());
        let Some(url) = url else {
            let fault = "is needed: the agent's card names an interface on another host";
            return Err(ConnectorFailure::config("endpoint", fault));
        };
        Ok(Some(Self {
            url,
            binding,
            tenant: filled(&interface["tenant"]).unwrap_or_default().to_owned(),
            streams,
        }))
    }
}

/// The request for the card.
pub(super) fn request(config: &Config) -> PlatformRequest {
    // A base URL of a JSON file is the address of the card itself.
    let path = std::path::Path::new(config.base.path());
    if path
        .extension()
        .is_some_and(|extension| extension == "json")
    {
        return authorized(config, PlatformRequest::get(config.base.clone()));
    }
    let url = below(&config.base, &[".well-known", "agent-card.json"]);
    authorized(config, PlatformRequest::get(url))
}
