//! Manifest of the protocol agent: identity, capabilities, permissions and configuration form.

use agent_core::manifest::form;
use protocol::id::RunnerId;
use protocol::manifest::{
    AgentRunnerManifest, Capabilities, ContextPolicy, I18n, Permissions, RunnerUsage,
};
use protocol::resources::{
    AgentOperation, ArtifactOperation, HistoryOperation, InteractionOperation, KnowledgeOperation,
    ModelOperation, StateScope, ToolOperation,
};

/// Default runner id; the command line can replace it.
pub const RUNNER_ID: &str = "plugin:runnel/protocol-agent/default";

/// Manifest of the agent with this runner id.
pub fn manifest(id: RunnerId) -> AgentRunnerManifest {
    let label = I18n::from_iter([
        ("en_US".to_owned(), "Protocol agent".to_owned()),
        ("zh_Hans".to_owned(), "协议智能体".to_owned()),
    ]);
    let description = I18n::from_iter([
        (
            "en_US".to_owned(),
            "Lets a model declare graphs of actions, which the runtime checks, asks about, runs and records.".to_owned(),
        ),
        (
            "zh_Hans".to_owned(),
            "由模型声明动作图，运行时负责检查、询问、执行并记录。".to_owned(),
        ),
    ]);
    AgentRunnerManifest {
        description: Some(description),
        usages: vec![RunnerUsage::Agent],
        capabilities: Capabilities {
            streaming: true,
            tool_calling: true,
            knowledge_retrieval: true,
            interrupt: true,
            steering: true,
            interactions: true,
            self_managed_context: true,
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
            interactions: InteractionOperation::ALL.to_vec(),
            agents: AgentOperation::ALL.to_vec(),
            // Tool results that exceed a response are stored as artifacts and read back.
            artifacts: vec![ArtifactOperation::Read],
            state: vec![StateScope::Conversation],
            ..Permissions::default()
        },
        context: ContextPolicy {
            supports_artifact_pull: false,
            wants_static_context_refs: false,
            ..ContextPolicy::default()
        },
        config_schema: form(FORM),
        ..AgentRunnerManifest::new(id, label)
    }
}

/// Configuration form: flat fields, each with a default.
const FORM: &str = include_str!("config_schema.json");

#[cfg(test)]
mod tests {
    use protocol::JsonObject;

    use super::*;
    use crate::config::Config;

    #[test]
    fn form_defaults_are_a_valid_configuration() {
        let form = form(FORM);
        let defaults = form
            .iter()
            .map(|item| (item.name.clone(), item.default.clone()));
        let filled: JsonObject = defaults.collect();
        let resources = protocol::resources::AgentResources::default();
        let read = Config::read(&filled, &resources).unwrap();
        assert_eq!(read.prompt.len(), 1);
        let absent = Config::read(&JsonObject::new(), &resources).unwrap();
        let prompt = read.prompt.clone();
        assert_eq!(read, Config { prompt, ..absent });
    }

    #[test]
    fn texts_have_both_languages() {
        let manifest = manifest(RUNNER_ID.parse().unwrap());
        let form = manifest.config_schema.iter();
        let texts = form.flat_map(|item| [Some(&item.label), item.description.as_ref()]);
        let own = [Some(&manifest.label), manifest.description.as_ref()];
        for text in texts.chain(own) {
            let languages: Vec<_> = text.unwrap().keys().collect();
            assert_eq!(languages, ["en_US", "zh_Hans"], "{text:?}");
        }
    }
}
