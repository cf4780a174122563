//! The harnesses of one settings file as runners.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use protocol::id::RunnerId;
use protocol::manifest::{
    AgentRunnerManifest, Capabilities, ContextPolicy, I18n, Permissions, RunnerUsage,
};
use protocol::resources::{
    ArtifactOperation, HistoryOperation, InteractionOperation, KnowledgeOperation, ModelOperation,
    StateScope, ToolOperation,
};
use runner_kit::{ResultStream, RunHandle, Runner, stream};
use serde_json::{Value, json};

use crate::config;
use crate::interpreter;
use crate::launch::find;
use crate::relay::CredentialRelay;
use crate::run;
use crate::sandbox::{self, Confinement};
use crate::settings::{HarnessFile, HarnessSettings, SandboxMode};
use crate::workspace::{RunWorkspace, Workspaces};

/// Parts that all harnesses of a service share.
pub struct HarnessService {
    pub(crate) settings: HarnessFile,
    pub(crate) workspaces: Workspaces,
    pub(crate) relay: CredentialRelay,
}

/// One harness as a runner.
pub(crate) struct Harness {
    pub(crate) service: Arc<HarnessService>,
    pub(crate) settings: HarnessSettings,
    id: RunnerId,
}

impl HarnessService {
    pub fn new(settings: HarnessFile, workspaces: Workspaces, relay: CredentialRelay) -> Self {
        Self {
            settings,
            workspaces,
            relay,
        }
    }

    /// The sandbox of a harness that works in this workspace.
    /// `port`: loopback port of its processes.
    pub(crate) fn confinement(
        &self,
        workspace: &RunWorkspace,
        command: &Path,
        port: Option<u16>,
    ) -> Confinement {
        let mut confinement = self.settings.confinement();
        confinement.read_write = vec![workspace.path.clone(), workspace.home_path.clone()];
        confinement.read_only.extend(installed_at(command));
        confinement.read_only.extend(interpreter::files_of(command));
        confinement.connect.push(self.relay.port());
        confinement.connect.extend(port);
        confinement.bind.extend(port);
        confinement
    }

    /// One line for each harness: its runner id, and its command or why it cannot run. Missing commands are logged, too.
    pub fn offered(&self) -> Vec<String> {
        let harnesses = self.settings.harnesses.iter();
        harnesses
            .filter_map(|harness| {
                let id = harness.runner_id().ok()?;
                if let Some(reason) = harness.missing() {
                    tracing::warn!("harness {id} is not available, {reason}");
                    return Some(format!("{id}: not available, {reason}"));
                }
                Some(format!("{id}: {}", find(harness.command())?.display()))
            })
            .collect()
    }

    /// The state of the sandbox, for manifests.
    fn shown_sandbox(&self) -> Value {
        let support = sandbox::support();
        match self.settings.sandbox {
            SandboxMode::Off => json!("off"),
            _ => {
                json!({"files": support.filesystem, "tcp": support.network, "landlock_abi": support.abi})
            }
        }
    }

    /// A runner for each harness of the settings.
    pub fn runners(self: &Arc<Self>) -> anyhow::Result<Vec<Arc<dyn Runner>>> {
        let harnesses = self.settings.harnesses.iter();
        harnesses
            .map(|settings| {
                let runner: Arc<dyn Runner> = Arc::new(Harness {
                    service: Arc::clone(self),
                    settings: settings.clone(),
                    id: settings.runner_id()?,
                });
                Ok(runner)
            })
            .collect()
    }
}

impl Runner for Harness {
    fn manifest(&self) -> AgentRunnerManifest {
        let label = in_english(self.settings.preset.label());
        let missing = self.settings.missing();
        let description = match &missing {
            None => format!(
                "{} under the governance of Runnel",
                self.settings.preset.label()
            ),
            Some(reason) => format!("Not available: {reason}"),
        };
        let mut metadata = json!({
            "harness": self.settings.preset.name(), "native": self.settings.is_native(),
            "available": missing.is_none(), "sandbox": self.service.shown_sandbox(),
        });
        if let Some(reason) = missing {
            metadata["unavailable_reason"] = reason.into();
        }
        let Value::Object(metadata) = metadata else {
            unreachable!("an object was made")
        };
        AgentRunnerManifest {
            description: Some(in_english(&description)),
            usages: vec![RunnerUsage::Agent],
            capabilities: Capabilities {
                streaming: true,
                tool_calling: true,
                knowledge_retrieval: true,
                multimodal_input: true,
                interrupt: true,
                stateful_session: true,
                steering: true,
                interactions: true,
                ..Capabilities::default()
            },
            permissions: Permissions {
                models: vec![
                    ModelOperation::Invoke,
                    ModelOperation::Stream,
                    ModelOperation::CountTokens,
                ],
                tools: ToolOperation::ALL.to_vec(),
                knowledge_bases: KnowledgeOperation::ALL.to_vec(),
                history: vec![HistoryOperation::Page],
                artifacts: ArtifactOperation::ALL.to_vec(),
                interactions: vec![InteractionOperation::Request],
                state: vec![StateScope::Conversation],
                ..Permissions::default()
            },
            context: ContextPolicy {
                wants_static_context_refs: false,
                ..ContextPolicy::default()
            },
            config_schema: config::form(&self.service.settings),
            metadata,
            ..AgentRunnerManifest::new(self.id.clone(), label)
        }
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        let harness = Self {
            service: Arc::clone(&self.service),
            settings: self.settings.clone(),
            id: self.id.clone(),
        };
        stream(move |out| run::run(run, out, harness))
    }
}

impl Harness {
    pub(crate) fn id(&self) -> &RunnerId {
        &self.id
    }
}

fn in_english(text: &str) -> I18n {
    BTreeMap::from([("en_US".to_owned(), text.to_owned())])
}

/// The folders that a command reads its own parts from: that of the file behind all links, and the `node_modules` around.
fn installed_at(command: &Path) -> Vec<PathBuf> {
    let Ok(real) = command.canonicalize() else {
        return Vec::new();
    };
    let modules = real.ancestors().find(|path| path.ends_with("node_modules"));
    let mut places: Vec<PathBuf> = modules.map(Path::to_path_buf).into_iter().collect();
    places.extend(real.parent().map(Path::to_path_buf));
    places.extend(command.parent().map(Path::to_path_buf));
    places
}
