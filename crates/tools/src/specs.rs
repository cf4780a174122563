//! What the configuration declares of tools.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ::http::{HeaderMap, Method};
use protocol::resources::{EffectSource, ToolEffect, ToolResource};
use secrecy::SecretString;
use url::Url;

use super::{GatewayTool, SkillPackage};
use egress::UrlTemplate;

/// What the configuration declares.
#[derive(Clone, Debug, Default)]
pub struct ToolSpecs {
    pub tools: Vec<ToolSpec>,
    pub servers: Vec<McpServerSpec>,
    /// By their names.
    pub skills: BTreeMap<String, SkillPackage>,
    /// Never shown to anybody, whatever a tool answers.
    pub secrets: Vec<SecretString>,
}

/// A tool that is there from the start.
#[derive(Clone, Debug)]
pub struct ToolSpec {
    pub resource: ToolResource,
    pub call: ToolCallSpec,
}

/// How such a tool is called.
#[derive(Clone, Debug)]
pub enum ToolCallSpec {
    Gateway(GatewayTool),
    Http(Box<HttpToolSpec>),
}

/// A tool that is one request.
#[derive(Clone, Debug)]
pub struct HttpToolSpec {
    pub url: UrlTemplate,
    pub method: Method,
    /// Static headers: secrets.
    pub headers: HeaderMap,
    pub timeout: Duration,
    /// Parameters of the path that may hold slashes.
    pub open: BTreeSet<String>,
    /// The names that its schema has: no other stands in a query.
    pub names: BTreeSet<String>,
}

/// A server of tools.
#[derive(Clone, Debug)]
pub struct McpServerSpec {
    pub name: String,
    pub transport: McpTransport,
    /// Names as the server has them; `None`: all.
    pub tools: Option<BTreeSet<String>>,
    pub prefix: String,
    /// The operator's facts of tools, by their names at the server. They replace those of the server.
    pub facts: BTreeMap<String, ToolFacts>,
    pub timeout: Duration,
}

/// How a server is reached.
#[derive(Clone)]
pub enum McpTransport {
    Http {
        url: Url,
        /// Static headers: secrets.
        headers: HeaderMap,
    },
    Child {
        program: String,
        arguments: Vec<String>,
        /// The whole environment of the process.
        env: Vec<(String, SecretString)>,
    },
}

impl std::fmt::Debug for McpTransport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// Effects of a tool's calls, and the source of these facts. A tool has one source: hints of a server fill in nothing
/// where the operator has said something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ToolFacts {
    pub effect: Option<ToolEffect>,
    pub idempotent: Option<bool>,
    pub source: Option<EffectSource>,
}

impl ToolFacts {
    /// No source where nothing is said.
    pub fn of(effect: Option<ToolEffect>, idempotent: Option<bool>, source: EffectSource) -> Self {
        let is_said = effect.is_some() || idempotent.is_some();
        Self {
            effect,
            idempotent,
            source: is_said.then_some(source),
        }
    }
}
