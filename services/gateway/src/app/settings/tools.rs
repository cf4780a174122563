//! Tools and MCP servers of the configuration, including their secrets.

use std::collections::{BTreeMap, BTreeSet};

use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::JsonObject;
use protocol::resources::{EffectSource, ToolEffect, ToolOperation, ToolResource};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use url::Url;

use super::{parsed, secrets};
use crate::config::{
    Config, ConfigFault, HttpToolEntry, McpServerEntry, McpTransportEntry, OnBehalfOfEntry,
    SecretRef, ToolEntry, inherited_variable,
};
use egress::Egress;
use tools::{
    GatewayTool, HttpToolSpec, McpServerSpec, McpTransport, OnBehalfOf, ToolCallSpec, ToolEffects,
    ToolSpec, ToolSpecs, check_schema,
};

/// Environment variables that child processes inherit.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// State of the reading: secrets and faults found so far.
struct ToolReader<'a> {
    egress: Option<&'a Egress>,
    secrets: Vec<SecretString>,
    faults: &'a mut Vec<ConfigFault>,
}

/// Tools and servers with validated URLs and schemas.
pub(super) fn tools(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> ToolSpecs {
    let mut reading = ToolReader {
        egress,
        secrets: Vec::new(),
        faults,
    };
    let mut specs = ToolSpecs::default();
    for (index, entry) in config.tools.iter().enumerate() {
        let spec = reading.tool(entry, &format!("tools[{index}]"));
        specs.tools.extend(spec);
    }
    for (index, entry) in config.mcp_servers.iter().enumerate() {
        let spec = reading.server(entry, &format!("mcp_servers[{index}]"));
        specs.servers.push(spec);
    }
    specs.secrets = reading.secrets;
    specs
}

impl ToolReader<'_> {
    fn tool(&mut self, entry: &ToolEntry, pointer: &str) -> Option<ToolSpec> {
        let Some(http) = &entry.http else {
            let ours = GatewayTool::parse(&entry.tool_name)?;
            let resource = ours.resource();
            return Some(ToolSpec {
                resource: ToolResource {
                    operations: parsed(&entry.operations, ToolOperation::parse),
                    description: entry.description.clone().or(resource.description),
                    tool_type: entry.tool_type.clone().or(resource.tool_type),
                    effect: effect(entry.effect.as_deref()).or(resource.effect),
                    idempotent: entry.idempotent.or(resource.idempotent),
                    ..resource
                },
                call: ToolCallSpec::Gateway(ours),
                reconcile: None,
            });
        };
        if let Some(schema) = &entry.parameters
            && let Err(error) = check_schema(schema)
        {
            self.fault(format!("{pointer}.parameters"), error);
        }
        let declared = effect(entry.effect.as_deref());
        let facts = ToolEffects::of(declared, entry.idempotent, EffectSource::Operator);
        Some(ToolSpec {
            resource: ToolResource {
                tool_name: entry.tool_name.clone(),
                tool_type: entry.tool_type.clone(),
                description: entry.description.clone(),
                operations: parsed(&entry.operations, ToolOperation::parse),
                parameters: entry.parameters.clone(),
                source: Some("http".to_owned()),
                effect: facts.effect,
                idempotent: facts.idempotent,
                effect_source: facts.source,
                approval: None,
            },
            call: ToolCallSpec::Http(Box::new(self.http(
                http,
                entry.parameters.as_ref(),
                pointer,
            ))),
            reconcile: entry.reconcile.clone(),
        })
    }

    fn http(
        &mut self,
        entry: &HttpToolEntry,
        parameters: Option<&JsonObject>,
        pointer: &str,
    ) -> HttpToolSpec {
        // The template with sample values: the rules apply to host and port, not to the parameters.
        let example = entry.url.example();
        self.check_url(example.as_str(), pointer);
        self.redact_query(&example);
        HttpToolSpec {
            url: entry.url.clone(),
            method: entry.method.parse().unwrap_or(http::Method::POST),
            headers: self.headers(&entry.headers, pointer),
            timeout: entry.timeout,
            open: entry.path_slashes.iter().cloned().collect(),
            names: parameters.map(property_names).unwrap_or_default(),
            on_behalf_of: self.on_behalf_of(entry.on_behalf_of.as_ref(), pointer),
        }
    }

    fn on_behalf_of(
        &mut self,
        entry: Option<&OnBehalfOfEntry>,
        pointer: &str,
    ) -> Option<OnBehalfOf> {
        let entry = entry?;
        let pointer = format!("{pointer}.credential.on_behalf_of");
        if let Some(Err(error)) = self.egress.map(|egress| egress.check_url(&entry.issuer)) {
            self.fault(format!("{pointer}.issuer"), error.to_string());
        }
        let secret = entry.client_secret.as_ref().map(|reference| {
            let pointer = format!("{pointer}.client_secret");
            secrets::secret(reference, &pointer, self.faults)
        });
        // An issuer may repeat the request in an error, which the runner sees.
        self.secrets.extend(secret.clone());
        Some(OnBehalfOf {
            issuer: entry.issuer.clone(),
            audience: entry.audience.clone(),
            scopes: entry.scopes.clone(),
            client_id: entry.client_id.clone(),
            client_secret: secret,
        })
    }

    /// Adds credentials in a query, raw and decoded, to the secrets that are redacted for runners.
    fn redact_query(&mut self, url: &Url) {
        // `query_pairs` also skips empty pairs.
        let raw = url.query().unwrap_or_default().split('&');
        let raw = raw.filter(|pair| !pair.is_empty());
        let raw = raw.map(|pair| pair.split_once('=').map_or("", |(_, value)| value));
        for ((name, value), raw) in url.query_pairs().zip(raw) {
            if is_credential(&name, &value) {
                self.secrets.push(raw.into());
                self.secrets.push(value.into_owned().into());
            }
        }
    }

    fn server(&mut self, entry: &McpServerEntry, pointer: &str) -> McpServerSpec {
        let named = entry.effects.keys().chain(entry.idempotent.keys());
        let facts = named.map(|name| {
            let declared = entry
                .effects
                .get(name)
                .and_then(|declared| effect(Some(declared)));
            let idempotent = entry.idempotent.get(name).copied();
            let facts = ToolEffects::of(declared, idempotent, EffectSource::Operator);
            (name.clone(), facts)
        });
        McpServerSpec {
            name: entry.name.clone(),
            transport: self.transport(&entry.transport, pointer),
            tools: entry.tools.clone().map(|names| names.into_iter().collect()),
            prefix: entry.prefix.clone(),
            facts: facts.collect(),
            reconcile: entry.reconcile.clone(),
            timeout: entry.timeout,
            on_behalf_of: self.on_behalf_of(entry.on_behalf_of.as_ref(), pointer),
        }
    }

    fn transport(&mut self, entry: &McpTransportEntry, pointer: &str) -> McpTransport {
        match entry {
            McpTransportEntry::Http { url, headers } => {
                self.check_url(url.as_str(), pointer);
                self.redact_query(url);
                McpTransport::Http {
                    url: url.clone(),
                    headers: self.headers(headers, pointer),
                }
            }
            McpTransportEntry::Child { command, env } => {
                // Most programs need these two to start; all other variables may hold secrets of the gateway.
                let inherited = INHERITED.iter().filter_map(|name| {
                    let value = inherited_variable(name)?;
                    Some(((*name).to_owned(), SecretString::from(value)))
                });
                let mut variables: BTreeMap<_, _> = inherited.collect();
                for (name, reference) in env {
                    let pointer = format!("{pointer}.env.{name}");
                    let value = secrets::secret(reference, &pointer, self.faults);
                    // A tool may echo its environment, so its values are redacted like headers.
                    self.secrets.push(value.clone());
                    variables.insert(name.clone(), value);
                }
                let mut words = command.iter().cloned();
                McpTransport::Child {
                    program: words.next().unwrap_or_default(),
                    arguments: words.collect(),
                    env: variables.into_iter().collect(),
                }
            }
        }
    }

    fn check_url(&mut self, url: &str, pointer: &str) {
        if let Some(Err(error)) = self.egress.map(|egress| egress.check_url(url)) {
            self.fault(format!("{pointer}.url"), error.to_string());
        }
    }

    fn headers(&mut self, entries: &BTreeMap<String, SecretRef>, pointer: &str) -> HeaderMap {
        let values = secrets::headers(entries, pointer, self.faults);
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            // Malformed headers are faults already.
            let name = name.parse::<HeaderName>();
            if let (Ok(name), Ok(mut header)) = (name, HeaderValue::from_str(value.expose_secret()))
            {
                // Sensitive values are left out of debug output and of the header compression table.
                header.set_sensitive(true);
                headers.insert(name, header);
            }
            self.secrets.push(value);
        }
        headers
    }

    fn fault(&mut self, pointer: String, message: impl std::fmt::Display) {
        self.faults.push(ConfigFault::new(pointer, message));
    }
}

/// Names of object properties in a schema and its subschemas.
fn property_names(schema: &JsonObject) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut left = vec![schema];
    while let Some(schema) = left.pop() {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            names.extend(properties.keys().cloned());
        }
        // Keywords that apply to the same object. Nested objects have no query parameters.
        for part in ["allOf", "anyOf", "oneOf"] {
            let parts = schema.get(part).and_then(Value::as_array);
            left.extend(parts.into_iter().flatten().filter_map(Value::as_object));
        }
        for part in ["if", "then", "else"] {
            left.extend(schema.get(part).and_then(Value::as_object));
        }
    }
    names
}

fn effect(name: Option<&str>) -> Option<ToolEffect> {
    match name? {
        "read" => Some(ToolEffect::Read),
        "write" => Some(ToolEffect::Write),
        "irreversible" => Some(ToolEffect::Irreversible),
        _ => None,
    }
}

/// True if a query parameter is a credential, by its name or by a value that looks random. Credentials are
/// redacted in all responses, so a common word must not match.
fn is_credential(name: &str, value: &str) -> bool {
    const NAMES: [&str; 9] = [
        "key",
        "token",
        "secret",
        "sig",
        "signature",
        "auth",
        "authorization",
        "password",
        "appid",
    ];
    const LONG: usize = 20;
    let name = name.to_ascii_lowercase();
    let looks_made = value.len() >= LONG
        && !value.contains(char::is_whitespace)
        && value.contains(|letter: char| letter.is_ascii_digit())
        && value.contains(|letter: char| letter.is_ascii_alphabetic());
    looks_made || NAMES.iter().any(|suffix| name.ends_with(suffix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_credentials_from_words() {
        for (name, value) in [
            ("key", "climate"),
            ("api_key", "x"),
            ("X-Amz-Signature", "0af3"),
            ("appid", "abc"),
            ("id", "4f2c9d0b8a7e6f5d4c3b"),
        ] {
            assert!(is_credential(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("keywords", "climate"),
            ("author", "someone"),
            ("timezone", "America/Argentina/Buenos_Aires"),
            ("order", "created_at descending, then 2"),
            ("since", "2026-11-26"),
        ] {
            assert!(!is_credential(name, value), "{name}={value}");
        }
    }
}
