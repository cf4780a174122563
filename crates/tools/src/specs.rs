//! Tool declarations of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::http::{HeaderMap, Method};
use protocol::resources::{EffectSource, ToolEffect, ToolResource};
use secrecy::SecretString;
use url::Url;

use super::{GatewayTool, OnBehalfOf, SkillPackage};
use egress::UrlTemplate;

/// Declarations of `[[tools]]`, `[[mcp_servers]]` and `[[skills]]`.
#[derive(Clone, Debug, Default)]
pub struct ToolSpecs {
    pub tools: Vec<ToolSpec>,
    pub servers: Vec<McpServerSpec>,
    /// Configured skills by name.
    pub skills: BTreeMap<String, SkillPackage>,
    /// Redacted from all tool responses.
    pub secrets: Vec<SecretString>,
}

/// A tool of `[[tools]]`, with its resource in the catalog.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    pub resource: ToolResource,
    pub call: ToolCallSpec,
    /// Name of the configured tool that knows what became of a call.
    pub reconcile: Option<String>,
}

/// Call settings of a configured tool.
#[derive(Clone, Debug)]
pub enum ToolCallSpec {
    Gateway(GatewayTool),
    Http(Box<HttpToolSpec>),
}

/// Request of an HTTP tool.
#[derive(Clone, Debug)]
pub struct HttpToolSpec {
    pub url: UrlTemplate,
    pub method: Method,
    /// Static headers, which are secrets.
    pub headers: HeaderMap,
    pub timeout: Duration,
    /// Path parameters that may hold slashes.
    pub open: BTreeSet<String>,
    /// Property names of its schema; only these are allowed in a query.
    pub names: BTreeSet<String>,
    /// Set if each call has a token of its actor.
    pub on_behalf_of: Option<OnBehalfOf>,
}

/// An MCP server of `[[mcp_servers]]`.
#[derive(Clone, Debug)]
pub struct McpServerSpec {
    pub name: String,
    pub transport: McpTransport,
    /// Upstream names; `None`: all tools.
    pub tools: Option<BTreeSet<String>>,
    pub prefix: String,
    /// The operator's facts by upstream tool name. They replace the server's facts.
    pub facts: BTreeMap<String, ToolEffects>,
    /// By upstream tool name, the upstream tool that knows what became of a call.
    pub reconcile: BTreeMap<String, String>,
    pub timeout: Duration,
    /// Set if each call has a token of its actor. Lists have the static headers.
    pub on_behalf_of: Option<OnBehalfOf>,
}

/// Transport to a server.
#[derive(Clone)]
pub enum McpTransport {
    Http {
        url: Url,
        /// Static headers, which are secrets.
        headers: HeaderMap,
    },
    Child {
        program: String,
        arguments: Vec<String>,
        /// Complete environment of the process.
        env: Vec<(String, SecretString)>,
    },
}

impl std::fmt::Debug for McpTransport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The variants hold secrets, so only the kind is printed.
        formatter.write_str(self.name())
    }
}

impl McpTransport {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Http { .. } => "streamable_http",
            Self::Child { .. } => "stdio",
        }
    }
}

/// Effects of a tool's calls, and their source. All facts of a tool have one source: the operator's facts are
/// not combined with the server's hints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolEffects {
    pub effect: Option<ToolEffect>,
    pub idempotent: Option<bool>,
    pub source: Option<EffectSource>,
}

impl ToolEffects {
    /// Without facts, the source is `None`.
    pub fn of(effect: Option<ToolEffect>, idempotent: Option<bool>, source: EffectSource) -> Self {
        let has_facts = effect.is_some() || idempotent.is_some();
        Self {
            effect,
            idempotent,
            source: has_facts.then_some(source),
        }
    }
}
