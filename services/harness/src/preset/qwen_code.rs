//! Qwen Code (npm `@qwen-code/qwen-code`): configured by variables and a file.

use super::{Access, Prepared};

pub(super) fn prepare(access: &Access<'_>) -> Prepared {
    let settings = serde_json::json!({
        "security": {"auth": {"selectedType": "openai"}, "folderTrust": {"enabled": false}},
        "privacy": {"usageStatisticsEnabled": false}, "telemetry": {"enabled": false},
        "general": {"enableAutoUpdate": false}, "model": {"name": access.config.model},
    });
    Prepared {
        env: vec![
            ("OPENAI_BASE_URL", access.openai.clone()),
            ("OPENAI_API_KEY", access.key.to_owned()),
            ("OPENAI_MODEL", access.config.model.clone()),
            ("QWEN_CODE_NO_RELAUNCH", "true".to_owned()),
            ("NO_BROWSER", "1".to_owned()),
        ],
        // Behind `tool_search`, the model would not see the tools of the MCP server.
        args: ["--exclude-tools", "tool_search"]
            .map(str::to_owned)
            .to_vec(),
        files: vec![(".qwen/settings.json", settings.to_string())],
        ..Prepared::default()
    }
}
