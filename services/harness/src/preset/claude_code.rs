//! Claude Code (npm `@anthropic-ai/claude-code`; ACP by `@agentclientprotocol/claude-agent-acp`): configured by
//! environment variables.

use serde_json::{Map, json};

use super::access::{Access, PresetAdditions};

/// Disabled tools: they act outside the workspace or after the run.
const WITHHELD: [&str; 9] = [
    "WebFetch",
    "WebSearch",
    "CronCreate",
    "CronDelete",
    "CronList",
    "ScheduleWakeup",
    "Workflow",
    "EnterWorktree",
    "ExitWorktree",
];
/// Tools without side effects.
pub(crate) const READING: [&str; 3] = ["Read", "Grep", "Glob"];
/// All tools of the MCP server. The relay decides their calls.
pub(crate) const GRANTED: &str = "mcp__runnel";

pub(super) fn prepare(access: &Access<'_>) -> PresetAdditions {
    let config = access.config;
    let on = || "1".to_owned();
    // No settings of the workspace: they could grant any permission.
    let mut options =
        json!({"settingSources": [], "allowedTools": [GRANTED], "disallowedTools": WITHHELD});
    if access.is_read_only() {
        options["tools"] = json!(READING);
    }
    let meta = json!({"claudeCode": {"options": options}});
    PresetAdditions {
        env: vec![
            ("ANTHROPIC_BASE_URL", access.anthropic.clone()),
            ("ANTHROPIC_AUTH_TOKEN", access.key.to_owned()),
            // All aliases point to granted models: the gateway rejects Anthropic's own names.
            ("ANTHROPIC_MODEL", config.model.clone()),
            ("ANTHROPIC_DEFAULT_OPUS_MODEL", config.model.clone()),
            ("ANTHROPIC_DEFAULT_SONNET_MODEL", config.model.clone()),
            ("ANTHROPIC_DEFAULT_HAIKU_MODEL", config.small_model.clone()),
            (
                "CLAUDE_CONFIG_DIR",
                access.home.join(".claude").to_string_lossy().into_owned(),
            ),
            (
                "MCP_TOOL_TIMEOUT",
                access.tool_time().as_millis().to_string(),
            ),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", on()),
            ("DISABLE_AUTOUPDATER", on()),
            ("DISABLE_TELEMETRY", on()),
            ("DISABLE_ERROR_REPORTING", on()),
        ],
        session: Map::from_iter([("_meta".to_owned(), meta)]),
        ..PresetAdditions::default()
    }
}
