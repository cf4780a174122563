//! Claude Code (npm `@anthropic-ai/claude-code`; ACP by `@agentclientprotocol/claude-agent-acp`): configured by variables.

use serde_json::{Map, json};

use super::{Access, PresetAdditions, is_read_only, tool_time};

/// Tools that work outside the workspace or beyond the run.
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
/// Tools that write nothing.
pub(crate) const READING: [&str; 3] = ["Read", "Grep", "Glob"];
/// Tools of the MCP server: the relay asks for their calls.
pub(crate) const GRANTED: &str = "mcp__runnel";

pub(super) fn prepare(access: &Access<'_>) -> PresetAdditions {
    let config = access.config;
    let on = || "1".to_owned();
    // Settings of the workspace are left unread: they could allow anything.
    let mut options =
        json!({"settingSources": [], "allowedTools": [GRANTED], "disallowedTools": WITHHELD});
    if is_read_only(access) {
        options["tools"] = json!(READING);
    }
    let meta = json!({"claudeCode": {"options": options}});
    PresetAdditions {
        env: vec![
            ("ANTHROPIC_BASE_URL", access.anthropic.clone()),
            ("ANTHROPIC_AUTH_TOKEN", access.key.to_owned()),
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
                tool_time(access).as_millis().to_string(),
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
