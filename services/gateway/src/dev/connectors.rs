//! Connector agents in the playground, each defined by a file.

use std::future::ready;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use connectors::agent_file::AgentFile;
use connectors::service::{ConnectorService, ServedIds};
use connectors::upstream::config::{SecretHosts, SecretSource};
use egress::{AllowRule, Egress};
use futures_util::future::BoxFuture;
use langbot::migrate::toml_text;
use runner_kit::Runner;
use serde_json::{Value, json};

use super::sidecars::{Sidecar, SidecarKind};
use crate::app::LoopbackServers;
use crate::config::inherited_variable;

/// Timeout for DNS, connection and TLS of a platform.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// Prefix of environment variables that agents may use as `env:NAME`.
const SECRETS: &str = "CONNECTOR_";

const AGENT: &str = r#"
[[agents]]
name = "{name}"
event_types = ["message.received"]
# Messages of the conversation `{name}`; all others go to the agent above.
scope = { kind = "conversation", conversation_id = "{name}" }
runner_id = "{runner_id}"
concurrency = "enqueue"

[agents.resource_policy]
history = ["page"]
artifacts = ["metadata", "read", "create"]

[agents.state_policy]
enabled = true
scopes = ["conversation"]

[agents.delivery_policy]
interactions = true

[agents.config]
"#;

/// Agent files, and destinations that their service may reach besides public HTTPS.
#[derive(clap::Args, Default)]
pub(crate) struct ConnectorArgs {
    /// Also serve the agent of this file: `runner_id` (a platform by name or id) and `[config]`, as for
    /// `runnel-connectors try`. The file's name is the agent's name. May be repeated.
    #[arg(long, value_name = "FILE")]
    connectors: Vec<PathBuf>,
    /// A destination that the agents of --connectors may reach besides public HTTPS: `host:port`, `ip:port` or a
    /// network. May be repeated.
    #[arg(long, value_name = "HOST:PORT", requires = "connectors")]
    allow: Vec<AllowRule>,
}

/// Agents of all files.
struct ConnectorAgents {
    agents: Vec<(String, AgentFile)>,
    allow: Vec<AllowRule>,
}

impl ConnectorArgs {
    /// Reads the files. Fails if a file has no agent, or if a name occurs twice.
    pub(super) fn read(&self) -> anyhow::Result<Box<dyn Sidecar>> {
        let mut agents: Vec<(String, AgentFile)> = Vec::new();
        for path in &self.connectors {
            // The name is also that of the agent, which must be unique.
            let name = name_of(path)?;
            ensure!(
                agents.iter().all(|(other, _)| *other != name),
                "--connectors: two files are named {name}"
            );
            agents.push((name, AgentFile::read(path, None).context("--connectors")?));
        }
        Ok(Box::new(ConnectorAgents {
            agents,
            allow: self.allow.clone(),
        }))
    }
}

impl ConnectorAgents {
    /// The runners of all platforms.
    fn open(&self) -> anyhow::Result<Vec<Arc<dyn Runner>>> {
        let egress = Egress::new(self.allow.clone(), CONNECT_TIME)?;
        let secrets = SecretSource {
            prefix: SECRETS.to_owned(),
            hosts: SecretHosts::Any,
            lookup: Arc::new(inherited_variable),
        };
        Ok(ConnectorService { egress, secrets }.runners(ServedIds::Own))
    }
}

impl Sidecar for ConnectorAgents {
    fn kind(&self) -> SidecarKind {
        SidecarKind {
            name: "connectors",
            about: "Agents on other platforms. Their service calls the platforms; docs/connectors.md describes each.",
            word: "agent",
            message: "Hello",
        }
    }

    fn agents(&self) -> Vec<String> {
        self.agents.iter().map(|(name, _)| name.clone()).collect()
    }

    fn runners<'a>(
        &'a self,
        _: &'a Path,
        _: &'a LoopbackServers,
    ) -> BoxFuture<'a, anyhow::Result<Vec<Arc<dyn Runner>>>> {
        Box::pin(ready(self.open()))
    }

    /// Its agents use models of their platforms.
    fn agent_tables(&self, _: &str) -> String {
        let tables = self.agents.iter().flat_map(|(name, file)| {
            let id = file.platform.id().to_string();
            let head = AGENT.replace("{name}", name).replace("{runner_id}", &id);
            let config = file.config.iter().map(|(key, value)| line(key, value));
            std::iter::once(head).chain(config)
        });
        tables.collect()
    }
}

fn line(key: &str, value: &Value) -> String {
    let [key, value] = [&json!(key), value].map(toml_text::value);
    format!("{key} = {value}\n")
}

fn name_of(path: &Path) -> anyhow::Result<String> {
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let is_plain = |name: &&str| {
        let mut bytes = name.bytes();
        !name.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let name = stem.filter(is_plain).with_context(|| {
        format!(
            "--connectors: name {} with letters, digits, `-` and `_`: the agent gets that name",
            path.display()
        )
    })?;
    Ok(name.to_owned())
}
