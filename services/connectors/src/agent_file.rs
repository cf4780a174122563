//! The file of one agent on a platform: its runner and its configuration.

use std::path::Path;

use anyhow::{Context as _, ensure};
use protocol::JsonObject;
use serde::Deserialize;

use crate::catalogue::{PLATFORMS, Platform};

/// An agent from a file.
#[derive(Debug)]
pub struct AgentFile {
    pub platform: &'static Platform,
    pub config: JsonObject,
}

/// A file, or one of its agents. Further members belong to the gateway.
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
    /// Reads a TOML file with `runner_id` (a runner's id, or a platform's name such as `dify` or `dify-agent`) and
    /// `[config]`, or a gateway's configuration with `[[agents]]`. There, `agent` selects one of several.
    pub fn read(path: &Path, agent: Option<&str>) -> anyhow::Result<Self> {
        let shown = path.display();
        let text = std::fs::read_to_string(path).with_context(|| unread(path))?;
        let table: AgentTable =
            toml::from_str(&text).with_context(|| format!("{shown} is no configuration"))?;
        let table = table.agent(agent).with_context(|| format!("{shown}"))?;
        Ok(Self {
            platform: table.platform().with_context(|| format!("{shown}"))?,
            config: table.config,
        })
    }
}

fn names() -> String {
    let names: Vec<_> = PLATFORMS.iter().map(Platform::short_name).collect();
    names.join(", ")
}

fn unread(path: &Path) -> String {
    let shown = path.display();
    // A common mistake is to give the platform's name instead of a file.
    match path.to_str().and_then(Platform::named) {
        Some(platform) => format!(
            "{shown} is a platform, and an agent needs a file: write `runner_id = \"{name}\"` and the keys of \
             docs/connectors/{name}.md under [config] to {name}.toml",
            name = platform.short_name()
        ),
        None => format!(
            "cannot read {shown}: an agent's file has `runner_id`, a platform of {}, and [config]",
            names()
        ),
    }
}

impl AgentTable {
    fn agent(mut self, name: Option<&str>) -> anyhow::Result<Self> {
        // A file with an id is itself the agent, and `--agent` has no effect.
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
        let is_it =
            // Files of migrated agents still name LangBot's runners.
            |platform: &&Platform| platform.id().to_string() == id || platform.legacy.contains(&id);
        let found = PLATFORMS.iter().find(is_it).or_else(|| Platform::named(id));
        found.with_context(|| format!("runner_id: {id} is none of these platforms: {}", names()))
    }
}
