//! Harness as a runner: its manifest, and its runs.

use agent_core::manifest::in_english;
use protocol::manifest::{
    AgentRunnerManifest, Capabilities, ContextPolicy, Permissions, RunnerUsage,
};
use protocol::resources::{
    ArtifactOperation, HistoryOperation, InteractionOperation, KnowledgeOperation, ModelOperation,
    StateScope, ToolOperation,
};
use runner_kit::{ResultStream, RunHandle, Runner, stream};
use serde_json::{Value, json};

use crate::config;
use crate::run;
use crate::service::Harness;

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
            "available": missing.is_none(), "sandbox": self.service.protections.summary(),
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
                resumable: true,
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
            ..AgentRunnerManifest::new(self.id().clone(), label)
        }
    }

    fn run(&self, run: RunHandle) -> ResultStream {
        let harness = self.clone();
        stream(move |out| run::run(run, out, harness))
    }
}
