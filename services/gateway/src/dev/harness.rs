//! Coding agents of the playground: locally installed harnesses on the playground's model.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use futures_util::future::BoxFuture;
use harness::owner::ProcessOwner;
use harness::preset::Preset;
use harness::relay::CredentialRelay;
use harness::service::HarnessService;
use harness::settings::HarnessFile;
use harness::workspace::Workspaces;
use langbot::migrate::toml_text;
use runner_kit::Runner;
use serde_json::json;

use super::sidecars::{Sidecar, SidecarKind};
use crate::app::LoopbackServers;

/// Configuration of one harness agent.
const AGENT: &str = r#"
[[agents]]
name = "{name}"
event_types = ["message.received"]
# Messages of the conversation `{name}`; all others go to the agent above.
scope = { kind = "conversation", conversation_id = "{name}" }
runner_id = "plugin:runnel/{name}/default"
concurrency = "enqueue"

[agents.resource_policy]
models = ["{model_id}"]
tools = ["current_time"]
history = ["page"]
artifacts = ["metadata", "read", "create"]

[agents.state_policy]
enabled = true
scopes = ["conversation"]

[agents.delivery_policy]
interactions = true

[agents.config]
model = "{model_id}"
"#;

/// Coding agents that the playground serves.
#[derive(clap::Args, Clone)]
pub(crate) struct HarnessArgs {
    /// Also serve a locally installed coding agent as an agent of this name: claude-code, codex, gemini-cli,
    /// kimi-code, opencode or qwen-code. May be repeated.
    #[arg(long, value_name = "NAME")]
    harness: Vec<String>,
}

impl HarnessArgs {
    /// Fails if a coding agent is unknown.
    pub(super) fn read(&self) -> anyhow::Result<Box<dyn Sidecar>> {
        let presets = Preset::NAMED.map(Preset::name);
        for name in &self.harness {
            ensure!(
                presets.contains(&name.as_str()),
                "--harness: `{name}` is none of {}",
                presets.join(", ")
            );
        }
        Ok(Box::new(self.clone()))
    }

    /// Runners that work below `data_dir`. Fails if a harness is not installed.
    async fn open(
        &self,
        data_dir: &Path,
        servers: &LoopbackServers,
    ) -> anyhow::Result<Vec<Arc<dyn Runner>>> {
        let (tasks, stop) = servers.tasks();
        let workspaces = data_dir.join("harness");
        let workspaces_text = toml_text::value(&json!(workspaces.to_string_lossy()));
        // The playground sets the endpoint's secret; this reference is never resolved.
        let mut text = format!("secret = \"env:unused\"\nworkspaces = {workspaces_text}\n");
        for name in &self.harness {
            let _ = write!(
                text,
                "[[harnesses]]\npreset = {}\n",
                toml_text::value(&json!(name))
            );
        }
        let settings = HarnessFile::parse(&text).context("--harness")?;
        // Fails at the start instead of at the first run.
        if let Some((id, reason)) = settings.missing().first() {
            bail!("--harness: {id} is not available, {reason}");
        }
        let workspaces = Workspaces::new(&workspaces, ProcessOwner::own())?;
        let (relay, relaying) = CredentialRelay::open_port(stop).await?;
        tasks.spawn(async move {
            if let Err(error) = relaying.await {
                let error = &error as &dyn std::error::Error;
                tracing::error!(error, "the relay of the playground's coding agents stopped");
            }
        });
        Arc::new(HarnessService::new(settings, workspaces, relay)).runners()
    }
}

impl Sidecar for HarnessArgs {
    fn kind(&self) -> SidecarKind {
        SidecarKind {
            name: "harness",
            about: "Coding agents as runners. They ask for permissions and reach the model above through the gateway.",
            word: "coder",
            message: "Write a haiku into poem.txt",
        }
    }

    fn agents(&self) -> Vec<String> {
        self.harness.clone()
    }

    fn runners<'a>(
        &'a self,
        data_dir: &'a Path,
        servers: &'a LoopbackServers,
    ) -> BoxFuture<'a, anyhow::Result<Vec<Arc<dyn Runner>>>> {
        Box::pin(self.open(data_dir, servers))
    }

    fn agent_tables(&self, model_id: &str) -> String {
        let named = self.harness.iter();
        named
            .map(|name| {
                AGENT
                    .replace("{name}", name)
                    .replace("{model_id}", model_id)
            })
            .collect()
    }
}
