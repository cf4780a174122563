//! The platforms: one row each.

pub use crate::platform::Platform;

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
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use protocol::id::RunnerId;

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
