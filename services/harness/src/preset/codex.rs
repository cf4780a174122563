//! Codex (npm `@openai/codex`) over its app server: configured by files in its own home.
//!
//! Its ACP adapter is not used: it runs a second thread for titles that executes commands without a permission.

use serde_json::{Value, json};
use toml::Table;

use super::access::{Access, PresetAdditions};
use crate::config::Config;

const HOME: &str = ".codex";

pub(super) fn prepare(access: &Access<'_>) -> PresetAdditions {
    let home = access.home.join(HOME);
    let catalog = home.join("catalog.json");
    PresetAdditions {
        env: vec![
            ("CODEX_HOME", home.to_string_lossy().into_owned()),
            ("RUNNEL_KEY", access.key.to_owned()),
        ],
        args: ["app-server", "--listen", "stdio://"]
            .map(str::to_owned)
            .to_vec(),
        files: vec![
            (
                ".codex/config.toml",
                config(access, &catalog.to_string_lossy()),
            ),
            (".codex/catalog.json", catalog_of(access.config).to_string()),
        ],
        ..PresetAdditions::default()
    }
}

fn config(access: &Access<'_>, catalog: &str) -> String {
    let config = json!({
        "model": access.config.model, "model_provider": "runnel", "model_catalog_json": catalog,
        // Threads of the run set their own approval policy; any other thread neither asks nor writes.
        "approval_policy": "never", "sandbox_mode": "read-only",
        "check_for_update_on_startup": false, "web_search": "disabled",
        "analytics": {"enabled": false}, "feedback": {"enabled": false}, "history": {"persistence": "none"},
        "agents": {"enabled": false},
        // Codex trusts unlisted projects and applies their settings.
        "projects": {access.directory.to_string_lossy(): {"trust_level": "untrusted"}},
        "features": {"apps": false, "plugins": false, "remote_plugin": false, "goals": false},
        "model_providers": {"runnel": {
            "name": "Runnel", "base_url": access.openai, "env_key": "RUNNEL_KEY", "wire_api": "responses",
            "requires_openai_auth": false,
        }},
        "mcp_servers": {"runnel": {
            "url": access.mcp, "bearer_token_env_var": "RUNNEL_KEY", "default_tools_approval_mode": "approve",
            "tool_timeout_sec": access.tool_time().as_secs(),
        }},
    });
    let table = serde_json::from_value::<Table>(config).unwrap_or_default();
    table.to_string()
}

/// Model catalog with the run's model. Without an entry, Codex logs a warning and omits its patch tool.
fn catalog_of(config: &Config) -> Value {
    let mut catalog: Value = serde_json::from_str(include_str!("codex_catalog.json"))
        .expect("the embedded catalog is JSON");
    for name in ["slug", "display_name"] {
        catalog["models"][0][name] = config.model.as_str().into();
    }
    catalog["models"][0]["input_modalities"] = config.input_modalities(&config.model);
    catalog
}

#[cfg(test)]
mod tests {
    use super::super::testing::{access, config as configured};
    use super::*;
    use crate::config::PermissionMode;

    #[test]
    fn config_has_no_secret_and_asks_always() {
        let agent = configured(PermissionMode::Ask);
        let text = config(&access(&agent), "/c.json");
        let read: Table = text.parse().unwrap();
        assert_eq!(read["sandbox_mode"].as_str(), Some("read-only"));
        assert_eq!(
            read["model_providers"]["runnel"]["wire_api"].as_str(),
            Some("responses")
        );
        assert_eq!(read["model"].as_str(), Some("big/one"));
        assert!(!text.contains("rk_secret"));
        let catalog = catalog_of(&agent);
        assert_eq!(
            catalog["models"][0]["input_modalities"],
            json!(["text", "image"])
        );
    }
}
