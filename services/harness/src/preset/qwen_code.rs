//! Qwen Code (npm `@qwen-code/qwen-code`): configured by variables and a file.

use super::access::{Access, PresetAdditions};

const SYSTEM: &str = ".qwen/system.json";

pub(super) fn prepare(access: &Access<'_>) -> PresetAdditions {
    let settings = serde_json::json!({
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": false}},
        "privacy": {"usageStatisticsEnabled": false}, "telemetry": {"enabled": false},
        "general": {"enableAutoUpdate": false}, "model": {
            "name": access.config.model,
            // Its table of model names declares unlisted models as text-only.
            "generationConfig": {"modalities": {"image": access.config.accepts_images(&access.config.model)}},
        },
    });
    let system = serde_json::json!({
        "mcp": {"allowed": ["runnel"]}, "permissions": {"ask": ["Bash", "Edit", "Write"]},
    });
    PresetAdditions {
        env: vec![
            ("OPENAI_BASE_URL", access.openai.clone()),
            ("OPENAI_API_KEY", access.key.to_owned()),
            ("OPENAI_MODEL", access.config.model.clone()),
            (
                "QWEN_CODE_SYSTEM_SETTINGS_PATH",
                access.home.join(SYSTEM).to_string_lossy().into_owned(),
            ),
            ("QWEN_CODE_NO_RELAUNCH", "true".to_owned()),
            ("NO_BROWSER", "1".to_owned()),
        ],
        // Settings of the workspace could allow tools and start servers; system settings override them.
        // `tool_search` would hide the tools of the MCP server from the model.
        args: [
            "--exclude-tools",
            "tool_search",
            "--allowed-mcp-server-names",
            "runnel",
        ]
        .map(str::to_owned)
        .to_vec(),
        files: vec![
            (".qwen/settings.json", settings.to_string()),
            (SYSTEM, system.to_string()),
        ],
        ..PresetAdditions::default()
    }
}
