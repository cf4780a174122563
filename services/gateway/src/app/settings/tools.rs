//! Tools and MCP servers of the configuration, with their secrets.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use protocol::resources::{ToolEffect, ToolOperation, ToolResource};
use secrecy::{ExposeSecret as _, SecretString};

use super::{known, secrets};
use crate::config::{
    Config, ConfigFault, HttpToolEntry, McpServerEntry, McpTransportEntry, SecretRef, ToolEntry,
    inherited_variable,
};
use crate::outbound::egress::Egress;
use crate::outbound::tool::{
    GatewayTool, HttpToolSpec, McpServerSpec, McpTransport, ToolCallSpec, ToolSpec, ToolSpecs,
    check_schema,
};

/// What a child process gets of our own environment.
const INHERITED: [&str; 2] = ["PATH", "HOME"];

/// What is read, and what is wrong with it.
struct Reading<'a> {
    egress: Option<&'a Egress>,
    secrets: Vec<SecretString>,
    faults: &'a mut Vec<ConfigFault>,
}

/// Tools and servers, their URLs and schemas judged.
pub(super) fn tools(
    config: &Config,
    egress: Option<&Egress>,
    faults: &mut Vec<ConfigFault>,
) -> ToolSpecs {
    let mut reading = Reading {
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

impl Reading<'_> {
    fn tool(&mut self, entry: &ToolEntry, place: &str) -> Option<ToolSpec> {
        let Some(http) = &entry.http else {
            let ours = GatewayTool::parse(&entry.tool_name)?;
            let resource = ours.resource();
            return Some(ToolSpec {
                resource: ToolResource {
                    operations: known(&entry.operations, ToolOperation::parse),
                    description: entry.description.clone().or(resource.description),
                    tool_type: entry.tool_type.clone().or(resource.tool_type),
                    effect: effect(entry.effect.as_deref()).or(resource.effect),
                    ..resource
                },
                call: ToolCallSpec::Gateway(ours),
            });
        };
        if let Some(schema) = &entry.parameters
            && let Err(error) = check_schema(schema)
        {
            self.fault(format!("{place}.parameters"), error);
        }
        Some(ToolSpec {
            resource: ToolResource {
                tool_name: entry.tool_name.clone(),
                tool_type: entry.tool_type.clone(),
                description: entry.description.clone(),
                operations: known(&entry.operations, ToolOperation::parse),
                parameters: entry.parameters.clone(),
                source: Some("http".to_owned()),
                effect: effect(entry.effect.as_deref()),
            },
            call: ToolCallSpec::Http(self.http(http, place)),
        })
    }

    fn http(&mut self, entry: &HttpToolEntry, place: &str) -> HttpToolSpec {
        self.check_url(entry.url.example().as_str(), place);
        HttpToolSpec {
            url: entry.url.clone(),
            method: entry.method.parse().unwrap_or(http::Method::POST),
            headers: self.headers(&entry.headers, place),
            timeout: entry.timeout,
        }
    }

    fn server(&mut self, entry: &McpServerEntry, place: &str) -> McpServerSpec {
        let effects = entry.effects.iter();
        McpServerSpec {
            name: entry.name.clone(),
            transport: self.transport(&entry.transport, place),
            tools: entry.tools.clone().map(|names| names.into_iter().collect()),
            prefix: entry.prefix.clone(),
            effects: effects
                .filter_map(|(name, said)| Some((name.clone(), effect(Some(said))?)))
                .collect(),
            timeout: entry.timeout,
        }
    }

    fn transport(&mut self, entry: &McpTransportEntry, place: &str) -> McpTransport {
        match entry {
            McpTransportEntry::Http { url, headers } => {
                self.check_url(url.as_str(), place);
                McpTransport::Http {
                    url: url.clone(),
                    headers: self.headers(headers, place),
                }
            }
            McpTransportEntry::Child { command, env } => {
                let inherited = INHERITED.iter().filter_map(|name| {
                    let value = inherited_variable(name)?;
                    Some(((*name).to_owned(), SecretString::from(value)))
                });
                let mut variables: BTreeMap<_, _> = inherited.collect();
                for (name, reference) in env {
                    let place = format!("{place}.env.{name}");
                    let value = secrets::secret(reference, &place, self.faults);
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

    fn check_url(&mut self, url: &str, place: &str) {
        if let Some(Err(error)) = self.egress.map(|egress| egress.check_url(url)) {
            let advice = "list its host:port in egress.allow, or serve it by https";
            self.fault(format!("{place}.url"), format!("{error}; {advice}"));
        }
    }

    fn headers(&mut self, entries: &BTreeMap<String, SecretRef>, place: &str) -> HeaderMap {
        let values = secrets::headers(entries, place, self.faults);
        let mut headers = HeaderMap::new();
        for (name, value) in values {
            // What is wrong with them is a fault already.
            let name = name.parse::<HeaderName>();
            if let (Ok(name), Ok(mut header)) = (name, HeaderValue::from_str(value.expose_secret()))
            {
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

fn effect(said: Option<&str>) -> Option<ToolEffect> {
    match said? {
        "read" => Some(ToolEffect::Read),
        "write" => Some(ToolEffect::Write),
        "irreversible" => Some(ToolEffect::Irreversible),
        _ => None,
    }
}
