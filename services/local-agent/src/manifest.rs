//! Manifest of the Local Agent: identity, permissions and configuration form.

use agent_core::manifest::{form, in_english};
use protocol::id::RunnerId;
use protocol::manifest::{
    AgentRunnerManifest, Capabilities, ContextPolicy, Permissions, RunnerUsage,
};
use protocol::resources::{
    AgentOperation, ArtifactOperation, HistoryOperation, KnowledgeOperation, ModelOperation,
    StateScope, ToolOperation,
};

/// Default runner id.
pub const RUNNER_ID: &str = "plugin:runnel/local-agent/default";

/// Manifest of the agent with this id.
pub fn manifest(id: RunnerId) -> AgentRunnerManifest {
    let label = in_english("Local Agent");
    let description =
        "Answers with a model, its tools and its knowledge, and keeps long conversations short.";
    AgentRunnerManifest {
        description: Some(in_english(description)),
        usages: vec![RunnerUsage::Agent],
        capabilities: Capabilities {
            streaming: true,
            tool_calling: true,
            knowledge_retrieval: true,
            multimodal_input: true,
            interrupt: true,
            skill_authoring: true,
            steering: true,
            resumable: true,
            ..Capabilities::default()
        },
        permissions: Permissions {
            models: ModelOperation::ALL.to_vec(),
            tools: ToolOperation::ALL.to_vec(),
            knowledge_bases: KnowledgeOperation::ALL.to_vec(),
            history: vec![HistoryOperation::Page],
            agents: AgentOperation::ALL.to_vec(),
            // The gateway reads artifacts for vision models.
            artifacts: vec![ArtifactOperation::Read],
            state: vec![StateScope::Conversation],
            ..Permissions::default()
        },
        context: ContextPolicy {
            supports_artifact_pull: false,
            wants_static_context_refs: false,
            ..ContextPolicy::default()
        },
        config_schema: form(include_str!("config_schema.json")),
        ..AgentRunnerManifest::new(id, label)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn manifest_requests_only_used_permissions() {
        let manifest = manifest(RUNNER_ID.parse().unwrap());
        let manifest = serde_json::to_value(&manifest).unwrap();
        let expected = json!({
            "models": ["invoke", "stream", "rerank", "count_tokens"], "tools": ["detail", "call"],
            "knowledge_bases": ["list", "retrieve"], "history": ["page"], "events": [], "artifacts": ["read"],
            "storage": [], "state": ["conversation"], "files": [], "platform_api": [], "interactions": [],
            "agents": ["call"],
        });
        assert_eq!(manifest["permissions"], expected);
        for capability in [
            "streaming",
            "tool_calling",
            "knowledge_retrieval",
            "multimodal_input",
            "skill_authoring",
            "interrupt",
            "steering",
            "resumable",
        ] {
            assert_eq!(manifest["capabilities"][capability], true, "{capability}");
        }
        assert_eq!(manifest["config_schema"].as_array().unwrap().len(), 20);
    }
}
