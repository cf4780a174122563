//! Sources: systems that post events by `POST /in/{source}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::admin::Fault;
use crate::event::EventEnvelope;
use crate::id::{AgentId, ApiKeyId, SourceId};
use crate::principal::Principal;

/// Signature scheme of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SourceScheme {
    /// Headers `webhook-id`, `webhook-timestamp` and `webhook-signature`.
    StandardWebhooks,
    /// Header `X-Hub-Signature-256`.
    Github,
    /// Header `X-Slack-Signature`, version `v0`.
    Slack,
    /// Header `Stripe-Signature`.
    Stripe,
    /// Header `X-Lark-Signature`, with an encrypted body.
    Feishu,
    /// Headers `timestamp` and `sign` of a robot. They do not cover the body.
    Dingtalk,
    /// Parameter `msg_signature`, with an encrypted body.
    Wecom,
    /// A header with the HMAC-SHA256 of the body.
    Hmac,
    /// No signature: the secret is the last part of the path.
    None,
}

impl SourceScheme {
    pub const ALL: [Self; 9] = [
        Self::StandardWebhooks,
        Self::Github,
        Self::Slack,
        Self::Stripe,
        Self::Feishu,
        Self::Dingtalk,
        Self::Wecom,
        Self::Hmac,
        Self::None,
    ];

    /// Returns the name used on the wire, in the configuration and in the database.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::StandardWebhooks => "standard_webhooks",
            Self::Github => "github",
            Self::Slack => "slack",
            Self::Stripe => "stripe",
            Self::Feishu => "feishu",
            Self::Dingtalk => "dingtalk",
            Self::Wecom => "wecom",
            Self::Hmac => "hmac",
            Self::None => "none",
        }
    }

    /// Parses the name of a scheme.
    pub fn parse(text: &str) -> Option<Self> {
        // Read from the names that are written, so that both agree.
        Self::ALL.into_iter().find(|one| one.as_str() == text)
    }
}

/// Encoding of a signature in a header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum SignatureEncoding {
    #[default]
    Hex,
    Base64,
}

/// Settings of a source, as they are stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceSettings {
    pub scheme: SourceScheme,
    /// Name of the signature header. Required by the scheme `hmac`; only for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Text before the signature in `header`, such as `sha256=`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Encoding of the signature in `header`. Default: `hex`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<SignatureEncoding>,
    /// jq filter from `{body, headers, query}` to an event, or to nothing.
    pub filter: String,
    /// jq filter from the same input to the key of the event: requests with equal keys are one event. Default: see
    /// `docs/sources.md`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<String>,
}

/// Body of `POST /v1/sources`, with the keys of `[[sources]]`.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SourceSpec {
    /// 1 to 64 lower-case letters, digits, `-`, `_` and `.`; unique in the workspace.
    pub name: String,
    pub scheme: SourceScheme,
    /// The secret that the sender signs with. Default: a generated one, if the scheme lets the receiver choose it:
    /// `standard_webhooks`, `github`, `hmac` and `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Name of the signature header. Required by the scheme `hmac`; only for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Text before the signature in `header`, such as `sha256=`. Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Encoding of the signature in `header`. Default: `hex`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<SignatureEncoding>,
    /// jq filter from `{body, headers, query}` to an event, or to nothing. At most 4 KiB.
    pub filter: String,
    /// jq filter from the same input to the key of the event: requests with equal keys are one event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe: Option<String>,
    /// Ids or names of 1 to 16 agents that the events reach. Absent: all agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<String>>,
}

impl SourceSpec {
    /// Returns the settings without name, secret and agents.
    pub fn settings(&self) -> SourceSettings {
        // Settings are stored and shown, so they have no secret.
        SourceSettings {
            scheme: self.scheme,
            header: self.header.clone(),
            prefix: self.prefix.clone(),
            encoding: self.encoding,
            filter: self.filter.clone(),
            dedupe: self.dedupe.clone(),
        }
    }
}

/// Shows no secret.
impl std::fmt::Debug for SourceSpec {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A log with the secret would open the source.
        formatter
            .debug_struct("SourceSpec")
            .field("name", &self.name)
            .field("settings", &self.settings())
            .field("agents", &self.agents)
            .finish_non_exhaustive()
    }
}

/// A source. Times are epoch seconds.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Source {
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub id: SourceId,
    pub name: String,
    /// `config` or `api`.
    pub origin: String,
    /// Path for the sender, `/in/{source}`. With the scheme `none`, `/` and the secret follow.
    pub path: String,
    // Members of the source itself, as in its specification.
    #[serde(flatten)]
    pub settings: SourceSettings,
    /// The agents that the events reach. Absent: all agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<AgentId>>,
    /// The API key whose rights the events have, of role `client`. Its revocation closes the source.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub api_key_id: ApiKeyId,
    /// False: it is gone from the configuration file, and takes no requests.
    pub enabled: bool,
    /// Only in the response that creates or rotates it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// End of the time in which the secret before the last rotation is accepted, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous_secret_until: Option<i64>,
    pub version: i64,
    pub created_at: i64,
    pub updated_at: i64,
    pub updated_by: Principal,
}

/// All sources of the workspace, by name.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceList {
    pub items: Vec<Source>,
}

/// Body of `POST /v1/sources/{source_id}/try`: a request as the sender makes it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TrySource {
    /// The body as text; of an encrypting scheme, the decrypted one.
    pub body: String,
    /// Headers by name. `content-type` tells the format of the body.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The query of the URL, without `?`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub query: Option<String>,
}

/// The event that a source makes of a request. Nothing is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TriedSource {
    /// Null if the filter yields nothing, or if there are faults.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub event: Option<Box<EventEnvelope>>,
    /// Faults of the event; a pointer is that of the event, `/filter` or `/dedupe`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub faults: Vec<Fault>,
}

/// Response to an accepted request of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SourceReceipt {
    /// The event. Null if the source ignores the request.
    #[cfg_attr(feature = "openapi", schema(required = true))]
    pub event_id: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wire_names_equal_parsed_names() {
        for scheme in SourceScheme::ALL {
            assert_eq!(serde_json::to_value(scheme).unwrap(), scheme.as_str());
            assert_eq!(SourceScheme::parse(scheme.as_str()), Some(scheme));
        }
    }

    #[test]
    fn debug_output_of_a_source_holds_no_secret() {
        let spec = r#"{"name": "n", "scheme": "hmac", "filter": ".", "secret": "hunter2"}"#;
        let spec: SourceSpec = serde_json::from_str(spec).unwrap();
        assert!(!format!("{spec:?}").contains("hunter2"));
    }
}
