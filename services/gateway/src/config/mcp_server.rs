//! `[[mcp_servers]]`: servers that provide tools.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde_json::Value;
use url::Url;

use super::endpoint::read_headers;
use super::on_behalf_of::{OnBehalfOfEntry, read_credential};
use super::secret_ref::SecretRef;
use super::table::{Reported, Table, array, name, one_of, parsed, seconds, text};
use super::tool::EFFECTS;
use egress::parse_plain_url;

const MAX_ARGUMENTS: usize = 64;
const MAX_VARIABLES: usize = 64;
const DEFAULT_TIMEOUT: Duration = Duration::from_mins(1);

/// `[[mcp_servers]]`.
#[derive(Clone, Debug)]
pub struct McpServerEntry {
    pub name: String,
    pub transport: McpTransportEntry,
    /// Upstream names; `None`: all tools that the server lists.
    pub tools: Option<Vec<String>>,
    /// Prefix of each tool name.
    pub prefix: String,
    /// `read`, `write` or `irreversible`, by upstream tool name.
    pub effects: BTreeMap<String, String>,
    /// True if a repeated call has no further effect, by upstream tool name.
    pub idempotent: BTreeMap<String, bool>,
    /// By upstream tool name, the upstream tool that knows what became of a call.
    pub reconcile: BTreeMap<String, String>,
    /// Timeout of one call.
    pub timeout: Duration,
    /// Set if each call has a token of its actor.
    pub on_behalf_of: Option<OnBehalfOfEntry>,
}

/// Transport to a server.
#[derive(Clone)]
pub enum McpTransportEntry {
    /// Streamable HTTP.
    Http {
        url: Url,
        headers: BTreeMap<String, SecretRef>,
    },
    /// A child process that communicates over standard input and output.
    Child {
        command: Vec<String>,
        env: BTreeMap<String, SecretRef>,
    },
}

impl McpServerEntry {
    pub(super) fn read(mut table: Table<'_>) -> Result<Self, Reported> {
        let server = table.required("name", server_name);
        let transport = read_transport(&mut table);
        let tools = table.optional("tools", names_or_all);
        let prefix = table.optional("prefix", prefix);
        let effects = table.entries("effects", |name, value| {
            Ok::<_, String>((name.to_owned(), one_of(EFFECTS)(value)?))
        });
        let idempotent = table.entries("idempotent", |name, value| {
            let flag = value.as_bool().ok_or("must be true or false")?;
            Ok::<_, &'static str>((name.to_owned(), flag))
        });
        let reconcile = table.entries("reconcile", |tool, value| {
            Ok::<_, &'static str>((tool.to_owned(), name(value)?))
        });
        let timeout = table.optional("timeout_seconds", seconds(0.1..=3600.0));
        let credential = read_credential(&mut table);
        // Its environment is set once, for all actors.
        let is_child = matches!(transport, Ok(McpTransportEntry::Child { .. }));
        let has_credential = matches!(credential, Ok(Some(_)));
        let is_usable = table.demand(
            "credential",
            !(is_child && has_credential),
            "belongs to `url`; a child process takes `env`",
        );
        table.close()?;
        is_usable?;
        Ok(Self {
            name: server?,
            transport: transport?,
            tools: tools?.flatten(),
            prefix: prefix?.unwrap_or_default(),
            effects: effects?.into_iter().collect(),
            idempotent: idempotent?.into_iter().collect(),
            reconcile: reconcile?.into_iter().collect(),
            timeout: timeout?.unwrap_or(DEFAULT_TIMEOUT),
            on_behalf_of: credential?,
        })
    }
}

fn read_transport(table: &mut Table<'_>) -> Result<McpTransportEntry, Reported> {
    let url = table.optional("url", |value| {
        parse_plain_url(&text(value)?).map_err(|error| error.to_string())
    });
    let headers = read_headers(table);
    let command = table.optional("command", command);
    let env = table.entries("env", |name, value| {
        Ok::<_, String>((variable(name)?, parsed::<SecretRef>(value)?))
    });
    // Both sides are read before the combination is checked, so that each fault is reported.
    let (url, headers, command, env) = (url?, headers?, command?, env?);
    if env.len() > MAX_VARIABLES {
        return Err(table.fault("env", "must be at most 64"));
    }
    match (url, command) {
        (Some(_), Some(_)) => Err(table.fault(
            "url",
            "is set together with `command`; set only one of them",
        )),
        (None, None) => Err(table.fault("url", "is required, or `command` instead of it")),
        (Some(_), None) if !env.is_empty() => Err(table.fault(
            "env",
            "belongs to `command`; a server at a URL takes `headers`",
        )),
        (None, Some(_)) if !headers.is_empty() => {
            Err(table.fault("headers", "belongs to `url`; a child process takes `env`"))
        }
        (Some(url), None) => Ok(McpTransportEntry::Http { url, headers }),
        (None, Some(command)) => Ok(McpTransportEntry::Child {
            command,
            env: env.into_iter().collect(),
        }),
    }
}

fn server_name(value: Value) -> Result<String, &'static str> {
    let name = name(value)?;
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    if name.len() > 64 || !name.bytes().all(is_plain) {
        return Err("must be at most 64 letters, digits, `-`, `_` and `.`");
    }
    Ok(name)
}

fn prefix(value: Value) -> Result<String, &'static str> {
    let prefix = server_name(value)?;
    if prefix.len() > 32 {
        return Err("must be at most 32 letters, digits, `-`, `_` and `.`");
    }
    Ok(prefix)
}

fn names_or_all(value: Value) -> Result<Option<Vec<String>>, &'static str> {
    if value.as_str() == Some("*") {
        return Ok(None);
    }
    let names: Result<Vec<String>, _> = array(value)
        .map_err(|_| "must be \"*\" or a list of names")?
        .into_iter()
        .map(name)
        .collect();
    names.map(Some)
}

fn command(value: Value) -> Result<Vec<String>, &'static str> {
    let words: Result<Vec<String>, _> = array(value)
        .map_err(|_| "must be a list: the program and its arguments")?
        .into_iter()
        .map(text)
        .collect();
    let words = words?;
    if words.is_empty() || words.len() > MAX_ARGUMENTS {
        return Err("must be the program and at most 63 arguments");
    }
    Ok(words)
}

fn variable(name: &str) -> Result<String, &'static str> {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'_';
    if name.is_empty() || !name.bytes().all(is_plain) {
        return Err("is no name of a variable; letters, digits and `_` make one");
    }
    Ok(name.to_owned())
}

// Arguments and queries may hold secrets.
impl fmt::Debug for McpTransportEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http { url, headers } => {
                let mut url = url.clone();
                url.set_query(None);
                let url = url.as_str();
                let mut shown = formatter.debug_struct("Http");
                shown.field("url", &url).field("headers", headers).finish()
            }
            Self::Child { command, env } => {
                let program = command.first();
                let mut shown = formatter.debug_struct("Child");
                let shown = shown.field("program", &program).field("env", env);
                shown.finish_non_exhaustive()
            }
        }
    }
}
