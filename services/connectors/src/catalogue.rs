//! The platforms: one row each.

use protocol::id::RunnerId;
use protocol::manifest::{
    AgentRunnerManifest, Capabilities, FormItem, I18n, Permissions, RunnerUsage,
};
use protocol::resources::{ArtifactOperation, HistoryOperation, InteractionOperation, StateScope};

use crate::machine::Machine;
use crate::turn::ConnectorTurn;
use crate::upstream::config::ConfigReader;
use crate::upstream::failure::ConnectorFailure;

/// All platforms.
pub static PLATFORMS: &[Platform] = &[
    crate::a2a_agent::PLATFORM,
    crate::ag_ui_agent::PLATFORM,
    crate::coze_agent::PLATFORM,
    crate::dashscope_agent::PLATFORM,
    crate::dify_agent::PLATFORM,
    crate::http_agent::PLATFORM,
    crate::langflow_agent::PLATFORM,
    crate::langgraph_agent::DEERFLOW,
    crate::langgraph_agent::PLATFORM,
    crate::n8n_agent::PLATFORM,
    crate::openai_agent::PLATFORM,
    crate::tbox_agent::PLATFORM,
    crate::weknora_agent::PLATFORM,
];

/// Creates the machine of one run, and reads the platform's own keys of the configuration.
pub type Start =
    fn(ConnectorTurn, &mut ConfigReader<'_>) -> Result<Box<dyn Machine>, ConnectorFailure>;

/// A platform in the catalogue.
#[derive(Debug)]
pub struct Platform {
    /// `dify-agent`: the middle part of the runner's id, and the directory of its transcripts.
    pub name: &'static str,
    /// The first part of its error codes.
    pub prefix: &'static str,
    pub label: &'static str,
    pub description: &'static str,
    /// The LangBot runners that it replaces, by id.
    pub legacy: &'static [&'static str],
    /// The platform accepts files.
    pub takes_files: bool,
    /// The platform can ask a person.
    pub asks: bool,
    /// The form's own items, a JSON list of [`FormItem`].
    pub form: &'static str,
    pub start: Start,
}

impl Platform {
    /// Finds a platform by its exact name.
    pub fn find(name: &str) -> Option<&'static Self> {
        PLATFORMS.iter().find(|platform| platform.name == name)
    }

    /// Finds a platform by a name as people write it: `dify`, `Dify`, `dify-agent`, `ag_ui`.
    pub fn named(name: &str) -> Option<&'static Self> {
        let name = name.trim().to_ascii_lowercase().replace([' ', '_'], "-");
        let is_it = |platform: &&Self| {
            let label = platform.label.to_ascii_lowercase().replace(' ', "-");
            [platform.name, platform.short_name(), &label].contains(&name.as_str())
        };
        PLATFORMS.iter().find(is_it)
    }

    /// `dify`: also the page's name in `docs/connectors`.
    pub fn short_name(&self) -> &'static str {
        self.name.trim_end_matches("-agent")
    }

    /// The runner id `plugin:runnel/{name}/default`.
    pub fn id(&self) -> RunnerId {
        let id = format!("plugin:runnel/{}/default", self.name).parse();
        id.expect("the name is one part of an id")
    }

    /// The manifest under a runner id, which may be a legacy one.
    pub fn manifest(&self, id: RunnerId) -> AgentRunnerManifest {
        AgentRunnerManifest {
            description: Some(in_english(self.description)),
            usages: vec![RunnerUsage::Agent],
            capabilities: Capabilities {
                streaming: true,
                multimodal_input: self.takes_files,
                interrupt: true,
                stateful_session: true,
                interactions: self.asks,
                ..Capabilities::default()
            },
            permissions: Permissions {
                history: vec![HistoryOperation::Page],
                artifacts: ArtifactOperation::ALL.to_vec(),
                // Without the permission the gateway refuses the question, so request it only for platforms that ask.
                interactions: if self.asks {
                    InteractionOperation::ALL.to_vec()
                } else {
                    Vec::new()
                },
                state: vec![StateScope::Conversation],
                ..Permissions::default()
            },
            config_schema: self.config_schema(),
            ..AgentRunnerManifest::new(id, in_english(self.label))
        }
    }

    /// The platform's own form items, then the common ones.
    pub fn config_schema(&self) -> Vec<FormItem> {
        let read = |text| serde_json::from_str::<Vec<FormItem>>(text);
        let mut items = read(self.form).expect("the embedded form is a list of fields");
        items.extend(
            read(include_str!("common_form.json")).expect("the embedded form is a list of fields"),
        );
        items
    }
}

fn in_english(text: &str) -> I18n {
    I18n::from_iter([("en_US".to_owned(), text.to_owned())])
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn platforms_have_several_names() {
        for (name, found) in [
            ("dify", Some("dify-agent")),
            ("dify-agent", Some("dify-agent")),
            ("Dify", Some("dify-agent")),
            ("ag_ui", Some("ag-ui-agent")),
            ("openai", Some("openai-agent")),
            ("A2A agent", Some("a2a-agent")),
            ("difi", None),
            ("", None),
        ] {
            assert_eq!(
                Platform::named(name).map(|platform| platform.name),
                found,
                "{name}"
            );
        }
    }

    #[test]
    fn ids_and_forms_are_distinct_and_readable() {
        let mut ids = BTreeSet::new();
        for platform in PLATFORMS {
            let manifest = platform.manifest(platform.id());
            assert!(ids.insert(manifest.id.to_string()), "{}", platform.name);
            for id in platform.legacy {
                assert!(
                    id.parse::<RunnerId>().is_ok() && ids.insert((*id).to_owned()),
                    "{id}"
                );
            }
            let names: BTreeSet<_> = manifest
                .config_schema
                .iter()
                .map(|item| &item.name)
                .collect();
            assert_eq!(
                names.len(),
                manifest.config_schema.len(),
                "{}",
                platform.name
            );
        }
    }
}
