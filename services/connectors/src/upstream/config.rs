//! Reads an agent's configuration: checks each key of the form and rejects unknown ones.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use protocol::JsonObject;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use url::Url;

use crate::request::Credential;
use crate::upstream::failure::{ConnectorFailure, Mapped};
use crate::upstream::secret_hosts::check_hosts;

pub use crate::upstream::secret_hosts::SecretHosts;

/// Default idle timeout in seconds.
pub const IDLE_SECONDS: u64 = 120;
const DAY_SECONDS: u64 = 86_400;
const ENV: &str = "env:";

/// Keys of migrated configurations without effect here.
pub const LEGACY_KEYS: &[&str] = &[
    "enable-all-tools",
    "tools",
    "knowledge-bases",
    "mcp-resources",
    "mcp-resource-agent-read-enabled",
    "langbot-assets-gateway-host",
    "langbot-assets-gateway-port",
    "langbot-assets-gateway-request-timeout",
    "langbot-assets-token-ttl",
    "remove-think",
    "streaming",
    "user-id-source",
];

/// Looks up an environment variable.
pub type EnvLookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// The source of `env:NAME` values.
#[derive(Clone)]
pub struct SecretSource {
    /// Only variables with this prefix are readable.
    pub prefix: String,
    pub hosts: SecretHosts,
    pub lookup: Arc<EnvLookup>,
}

/// The time limits of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallTimeouts {
    /// Maximum time without content from the platform.
    pub idle: Duration,
    /// Maximum time of the run; `None`: only the gateway's deadline applies.
    pub total: Option<Duration>,
}

/// Reads the keys of one configuration. A key that is `null` is absent.
pub struct ConfigReader<'a> {
    config: &'a JsonObject,
    source: &'a SecretSource,
    accepted: Vec<&'static str>,
    secrets: Vec<SecretString>,
    /// Names of the variables that were read, each with its key.
    variables: Vec<(String, String)>,
    /// Addresses that were read: the targets of requests.
    urls: Vec<Url>,
}

impl<'a> ConfigReader<'a> {
    pub fn new(config: &'a JsonObject, source: &'a SecretSource) -> Self {
        Self {
            config,
            source,
            accepted: Vec::new(),
            secrets: Vec::new(),
            variables: Vec::new(),
            urls: Vec::new(),
        }
    }

    /// A trimmed text; empty if it is absent.
    pub fn text(&mut self, key: &'static str) -> Mapped<String> {
        match self.value(key) {
            None => Ok(String::new()),
            Some(Value::String(text)) => Ok(text.trim().to_owned()),
            Some(_) => Err(ConnectorFailure::config(key, "must be a text")),
        }
    }

    /// A text, or the default if it is absent or empty.
    pub fn text_or(&mut self, key: &'static str, default: &str) -> Mapped<String> {
        let text = self.text(key)?;
        Ok(if text.is_empty() {
            default.to_owned()
        } else {
            text
        })
    }

    /// A text that must not be empty.
    pub fn required(&mut self, key: &'static str) -> Mapped<String> {
        let text = self.text(key)?;
        if text.is_empty() {
            return Err(ConnectorFailure::config(key, "is required"));
        }
        Ok(text)
    }

    /// A literal secret, or `env:NAME` of the connectors' environment. Its value is redacted in failures and logs.
    pub fn secret(&mut self, key: &'static str) -> Mapped<Option<SecretString>> {
        let text = self.text(key)?;
        let value = match text.strip_prefix(ENV) {
            None => text,
            Some(name) => self.variable(key, name)?,
        };
        if value.is_empty() {
            return Ok(None);
        }
        // A line break in a header value would end the header.
        if value.contains(|letter: char| letter.is_control()) {
            return Err(ConnectorFailure::config(key, "holds control characters"));
        }
        // Register the secret before any use, so that each later failure redacts it.
        let secret = SecretString::from(value);
        self.secrets.push(secret.clone());
        Ok(Some(secret))
    }

    /// `api-key` as a header: its name, chosen by `api-key-header`, and its complete value.
    pub fn credential(&mut self, headers: &[&'static str]) -> Mapped<Option<Credential>> {
        let key = self.secret("api-key")?;
        let headers: Vec<_> = headers.iter().map(|name| (*name, *name)).collect();
        let header = self.choice("api-key-header", &headers)?;
        let value = key.map(|key| match header {
            "authorization" => format!("Bearer {}", key.expose_secret()).into(),
            _ => key,
        });
        Ok(value.map(|value| (header, value)))
    }

    /// A secret that must not be empty.
    pub fn required_secret(&mut self, key: &'static str) -> Mapped<SecretString> {
        let secret = self.secret(key)?;
        secret.ok_or_else(|| ConnectorFailure::config(key, "is required"))
    }

    fn variable(&mut self, key: &str, name: &str) -> Mapped<String> {
        let prefix = &self.source.prefix;
        // Without the prefix an agent could read any variable of the process.
        if !name.starts_with(prefix.as_str()) {
            let fault = format!("may only name variables that begin with {prefix}");
            return Err(ConnectorFailure::config(key, &fault));
        }
        self.variables.push((key.to_owned(), name.to_owned()));
        let value = (self.source.lookup)(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| {
            ConnectorFailure::config(
                key,
                &format!("names {name}, which is not set in the connectors' environment"),
            )
        })
    }

    /// A URL of `http` or `https` without credentials, query or fragment, or the default; required without one.
    pub fn base_url(&mut self, key: &'static str, default: &str) -> Mapped<Url> {
        let url = self.url(key, default)?;
        if url.query().is_some() {
            return Err(ConnectorFailure::config(key, "must have no query"));
        }
        Ok(url)
    }

    /// As [`ConfigReader::base_url`], but may have a query.
    pub fn url(&mut self, key: &'static str, default: &str) -> Mapped<Url> {
        let text = self.text_or(key, default)?;
        if text.is_empty() {
            return Err(ConnectorFailure::config(key, "is required"));
        }
        let url = Url::parse(&text).map_err(|_| ConnectorFailure::config(key, "must be a URL"))?;
        // Credentials in a URL would appear in logs.
        let is_plain =
            url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !is_plain {
            return Err(ConnectorFailure::config(
                key,
                "must be a URL of http or https without credentials and fragment",
            ));
        }
        self.urls.push(url.clone());
        Ok(url)
    }

    /// One of these values; the first one if it is absent.
    pub fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Mapped<T> {
        let names = || {
            choices
                .iter()
                .map(|(name, _)| *name)
                .collect::<Vec<_>>()
                .join(", ")
        };
        let text = self.text_or(key, choices.first().map_or("", |(name, _)| name))?;
        let found = choices.iter().find(|(name, _)| *name == text);
        let found = found.map(|(_, choice)| *choice);
        found.ok_or_else(|| ConnectorFailure::config(key, &format!("must be one of: {}", names())))
    }

    pub fn flag(&mut self, key: &'static str) -> Mapped<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(*flag)),
            Some(_) => Err(ConnectorFailure::config(key, "must be true or false")),
        }
    }

    /// An integer within a range.
    pub fn integer(
        &mut self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Mapped<u64> {
        let Some(value) = self.value(key) else {
            return Ok(default);
        };
        let number = value.as_u64().filter(|number| range.contains(number));
        let (min, max) = (range.start(), range.end());
        number.ok_or_else(|| {
            ConnectorFailure::config(key, &format!("must be a whole number from {min} to {max}"))
        })
    }

    /// A number of earlier messages, up to 100.
    pub fn messages(&mut self, key: &'static str, default: u64) -> Mapped<u32> {
        let messages = self.integer(key, default, 0..=100)?;
        Ok(u32::try_from(messages).unwrap_or(u32::MAX))
    }

    /// A JSON object, or a text of JSON; empty if it is absent.
    pub fn object(&mut self, key: &'static str) -> Mapped<JsonObject> {
        let wrong = || ConnectorFailure::config(key, "must be a JSON object");
        match self.value(key) {
            None => Ok(JsonObject::new()),
            Some(Value::Object(object)) => Ok(object.clone()),
            Some(Value::String(text)) if text.trim().is_empty() => Ok(JsonObject::new()),
            Some(Value::String(text)) => serde_json::from_str(text).map_err(|_| wrong()),
            Some(_) => Err(wrong()),
        }
    }

    /// As [`ConfigReader::object`]; texts `env:NAME` within it are replaced by secrets.
    pub fn object_with_secrets(&mut self, key: &'static str) -> Mapped<JsonObject> {
        let mut object = Value::Object(self.object(key)?);
        self.fill_in(key, &mut object)?;
        Ok(crate::upstream::json::object(object))
    }

    fn fill_in(&mut self, key: &str, value: &mut Value) -> Mapped {
        match value {
            Value::String(text) => {
                if let Some(name) = text.strip_prefix(ENV) {
                    let secret = self.variable(key, name)?;
                    self.secrets.push(SecretString::from(secret.clone()));
                    *text = secret;
                }
                Ok(())
            }
            Value::Array(items) => items
                .iter_mut()
                .try_for_each(|item| self.fill_in(key, item)),
            Value::Object(members) => members
                .values_mut()
                .try_for_each(|member| self.fill_in(key, member)),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    /// Redacts a further value in messages and logs.
    pub fn hide(&mut self, value: &str) {
        self.secrets.push(SecretString::from(value.to_owned()));
    }

    /// A list of texts; empty if it is absent.
    pub fn texts(&mut self, key: &'static str) -> Mapped<Vec<String>> {
        let Some(value) = self.value(key) else {
            return Ok(Vec::new());
        };
        let texts = serde_json::from_value(value.clone());
        texts.map_err(|_| ConnectorFailure::config(key, "must be a list of texts"))
    }

    /// Accepts keys without effect.
    pub fn ignore(&mut self, keys: &[&'static str]) {
        self.accepted.extend_from_slice(keys);
    }

    /// `host-tools`, or the option of migrated configurations: the name of the input variable for the run token.
    pub fn host_tools(&mut self) -> Mapped<Option<String>> {
        let name = self.text("host-tools")?;
        // Read all three keys in any case: an unread key counts as unknown.
        let is_on = self.flag("langbot-assets-enabled")?.unwrap_or_default();
        let legacy = self.text_or("langbot-assets-input-name", "langbot_asset_run_token")?;
        Ok(match name {
            name if !name.is_empty() => Some(name),
            _ => is_on.then_some(legacy),
        })
    }

    /// `idle-timeout` and `total-timeout`. `timeout` of migrated configurations raises the idle limit and never lowers
    /// it: there, pings counted as content.
    pub(crate) fn limits(&mut self) -> Mapped<CallTimeouts> {
        let legacy = self.integer("timeout", IDLE_SECONDS, 0..=DAY_SECONDS)?;
        let idle = self.integer("idle-timeout", legacy.max(IDLE_SECONDS), 1..=DAY_SECONDS)?;
        let total = self.integer("total-timeout", 0, 0..=DAY_SECONDS)?;
        Ok(CallTimeouts {
            idle: Duration::from_secs(idle),
            total: (total > 0).then(|| Duration::from_secs(total)),
        })
    }

    /// Rejects keys that were not read, and variables that must not be sent to the configured addresses. Returns the
    /// secrets that were read.
    pub(crate) fn finish(self) -> Mapped<Vec<SecretString>> {
        // Check the hosts at the end, because addresses may be read after the secrets.
        check_hosts(self.source, &self.variables, &self.urls)?;
        let unknown = self
            .config
            .keys()
            .find(|key| !self.accepted.contains(&key.as_str()));
        match unknown {
            None => Ok(self.secrets),
            Some(key) => Err(ConnectorFailure::config(
                key,
                "is no key of this runner's configuration",
            )),
        }
    }

    fn value(&mut self, key: &'static str) -> Option<&'a Value> {
        self.accepted.push(key);
        self.config.get(key).filter(|value| !value.is_null())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn source() -> SecretSource {
        SecretSource {
            prefix: "CONNECTOR_".to_owned(),
            hosts: SecretHosts::Listed,
            lookup: Arc::new(|name| match name {
                "CONNECTOR_A" => Some("value".to_owned()),
                "CONNECTOR_A_HOSTS" => Some("a.example, B.example:8443,10.0.0.1:80".to_owned()),
                "CONNECTOR_C" => Some("other".to_owned()),
                _ => None,
            }),
        }
    }

    fn fault<T>(config: &Value, read: impl Fn(&mut ConfigReader<'_>) -> Mapped<T>) -> String {
        let source = source();
        let mut reader = ConfigReader::new(config.as_object().unwrap(), &source);
        match read(&mut reader).err().or_else(|| reader.finish().err()) {
            None => String::new(),
            Some(failure) => failure.details["pointer"].as_str().unwrap().to_owned(),
        }
    }

    #[test]
    fn wrong_values_name_their_pointer() {
        let choices = [("a", 1), ("b", 2)];
        assert_eq!(fault(&json!({"k": 1}), |r| r.text("k")), "/k");
        assert_eq!(fault(&json!({"k": " "}), |r| r.required("k")), "/k");
        assert_eq!(
            fault(&json!({"k": "ftp://a"}), |r| r.base_url("k", "")),
            "/k"
        );
        assert_eq!(
            fault(&json!({"k": "https://u:p@a.example"}), |r| r
                .base_url("k", "")),
            "/k"
        );
        assert_eq!(fault(&json!({"k": "c"}), |r| r.choice("k", &choices)), "/k");
        assert_eq!(
            fault(&json!({"k": 11}), |r| r.integer("k", 1, 0..=10)),
            "/k"
        );
        assert_eq!(fault(&json!({"k": "[1]"}), |r| r.object("k")), "/k");
        assert_eq!(fault(&json!({"k": "yes"}), |r| r.flag("k")), "/k");
        assert_eq!(
            fault(&json!({"k": "a", "x/y": 1}), |r| r.text("k")),
            "/x~1y"
        );
        assert_eq!(
            fault(&json!({"k": null}), |r| r.integer("k", 1, 0..=10)),
            ""
        );
    }

    #[test]
    fn secrets_come_from_allowed_variables() {
        let config = json!({"a": "env:CONNECTOR_A", "b": "literal"});
        let source = source();
        let mut reader = ConfigReader::new(config.as_object().unwrap(), &source);
        assert_eq!(
            reader.required_secret("a").unwrap().expose_secret(),
            "value"
        );
        assert_eq!(
            reader.required_secret("b").unwrap().expose_secret(),
            "literal"
        );
        assert_eq!(reader.finish().unwrap().len(), 2);
        for name in ["env:HOME", "env:CONNECTOR_B"] {
            assert_eq!(fault(&json!({"k": name}), |r| r.secret("k")), "/k");
        }
    }

    #[test]
    fn variables_go_to_their_hosts_alone() {
        let read = |url: &str, name: &str| {
            let config =
                json!({"k": format!("env:{name}"), "u": url, "o": {"x": [format!("env:{name}")]}});
            [
                fault(&json!({"k": config["k"], "u": url}), |r| {
                    r.secret("k")?;
                    r.url("u", "")
                }),
                fault(&json!({"u": url, "o": config["o"]}), |r| {
                    r.object_with_secrets("o")?;
                    r.url("u", "")
                }),
            ]
        };
        for url in [
            "https://a.example/v1",
            "https://b.example:8443",
            "http://10.0.0.1/x",
            "https://A.example:443",
        ] {
            assert_eq!(read(url, "CONNECTOR_A"), ["", ""], "{url}");
        }
        for url in [
            "https://evil.example",
            "https://a.example.evil.example",
            "https://a.example:8443",
            "http://a.example",
            "https://b.example",
            "http://10.0.0.1:8080",
        ] {
            assert_eq!(read(url, "CONNECTOR_A"), ["/k", "/o"], "{url}");
        }
        assert_eq!(read("https://a.example", "CONNECTOR_C"), ["/k", "/o"]);
        let literal = json!({"k": "literal", "u": "https://evil.example"});
        assert_eq!(fault(&literal, |r| r.secret("k").and(r.url("u", ""))), "");
    }

    #[test]
    fn legacy_timeouts_never_lower_the_idle_limit() {
        for (config, idle) in [
            (json!({}), 120),
            (json!({"timeout": 30}), 120),
            (json!({"timeout": 300}), 300),
            (json!({"timeout": 300, "idle-timeout": 5}), 5),
        ] {
            let source = source();
            let limits = ConfigReader::new(config.as_object().unwrap(), &source)
                .limits()
                .unwrap();
            assert_eq!(limits.idle, Duration::from_secs(idle), "{config}");
        }
    }
}
