//! The file of one agent on a platform: its runner and its configuration.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use protocol::JsonObject;
use serde::Deserialize;

use crate::catalogue::{PLATFORMS, Platform};

/// An agent as a file describes it.
#[derive(Debug)]
pub struct AgentFile {
    pub platform: &'static Platform,
    pub config: JsonObject,
}

/// A file, or one of its agents. Further members are for the gateway.
#[derive(Deserialize)]
struct AgentTable {
    #[serde(default)]
    name: String,
    runner_id: Option<String>,
    #[serde(default)]
    config: JsonObject,
    #[serde(default)]
    agents: Vec<AgentTable>,
}

impl AgentFile {
    /// Reads a TOML file with `runner_id` (a runner's id, or a platform's name such as `dify-agent`) and `[config]`, or
    /// a gateway's configuration with `[[agents]]`, where `agent` names one of several. Fails with the reason for a
    /// file that has no such agent.
    pub fn read(path: &Path, agent: Option<&str>) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
        let table: AgentTable =
            toml::from_str(&text).with_context(|| format!("{shown} is no configuration"))?;
        let table = table.agent(agent).with_context(|| format!("{shown}"))?;
        Ok(Self {
            platform: table.platform().with_context(|| format!("{shown}"))?,
            config: table.config,
        })
    }
}

impl AgentTable {
    fn agent(mut self, name: Option<&str>) -> anyhow::Result<Self> {
        if self.runner_id.is_some() {
            return Ok(self);
        }
        self.agents
            .retain(|agent| name.is_none_or(|name| name == agent.name));
        let found = self.agents.pop();
        ensure!(
            self.agents.is_empty(),
            "the file has several agents: name one with --agent"
        );
        found.context("the file has neither a runner_id nor such an agent")
    }

    fn platform(&self) -> anyhow::Result<&'static Platform> {
        let id = self.runner_id.as_deref().unwrap_or_default();
        let is_it = |platform: &&Platform| {
            platform.name == id || platform.id().to_string() == id || platform.legacy.contains(&id)
        };
        if let Some(platform) = PLATFORMS.iter().find(is_it) {
            return Ok(platform);
        }
        let names: Vec<_> = PLATFORMS.iter().map(|platform| platform.name).collect();
        bail!("runner_id: {id} is none of these: {}", names.join(", "))
    }
}
