//! Gemini CLI (npm `@google/gemini-cli`): it supports only Google's models, with a key of the operator (`env`).

use super::access::{Access, PresetAdditions};

pub(super) fn prepare(access: &Access<'_>) -> PresetAdditions {
    // With `folderTrust` enabled, it drops the MCP server silently.
    let settings = serde_json::json!({
        "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": false}},
        "privacy": {"usageStatisticsEnabled": false}, "telemetry": {"enabled": false},
        "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false},
        "model": {"name": access.config.model},
    });
    PresetAdditions {
        env: vec![
            ("GEMINI_MODEL", access.config.model.clone()),
            ("GEMINI_CLI_NO_RELAUNCH", "true".to_owned()),
            ("NO_BROWSER", "1".to_owned()),
        ],
        args: [
            "--allowed-mcp-server-names",
            "runnel",
            "--approval-mode",
            "default",
        ]
        .map(str::to_owned)
        .to_vec(),
        files: vec![(".gemini/settings.json", settings.to_string())],
        ..PresetAdditions::default()
    }
}
