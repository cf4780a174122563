//! Presets of supported harnesses: command, arguments, and configuration for the models of a run.

mod claude_code;
mod codex;
mod gemini_cli;
mod kimi_code;
mod opencode;
mod qwen_code;

use std::path::Path;

use serde::Deserialize;

use crate::config::{Config, PermissionMode};

pub(crate) use claude_code::{GRANTED as CLAUDE_GRANTED, READING as CLAUDE_READING};

/// Timeout of an MCP tool call, without the wait for a permission.
const TOOL_TIME: std::time::Duration = std::time::Duration::from_mins(10);

/// Supported harness. The kebab-case name is part of runner ids and settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Any ACP agent, by the operator's command.
    Acp,
    ClaudeCode,
    Codex,
    GeminiCli,
    KimiCode,
    Opencode,
    QwenCode,
}

/// Members of an agent's `config` that select a granted model.
pub const MODEL_SELECTORS: [&str; 2] = ["model", "small-model"];

/// True if the runner id is one of this service's harnesses.
pub fn is_runner(id: &protocol::id::RunnerId) -> bool {
    let presets = Preset::NAMED.into_iter().chain([Preset::Acp]);
    let mut prefixes = presets.map(|preset| format!("plugin:runnel/{}/", preset.name()));
    let id = id.to_string();
    prefixes.any(|prefix| id.starts_with(&prefix))
}

/// Addresses and credentials for the models and tools of a run.
pub(crate) struct Access<'a> {
    /// Base URL of the OpenAI faces.
    pub(crate) openai: String,
    /// Base URL of the Anthropic face.
    pub(crate) anthropic: String,
    /// URL of the MCP server.
    pub(crate) mcp: String,
    /// Relay key for all of these URLs.
    pub(crate) key: &'a str,
    pub(crate) config: &'a Config,
    pub(crate) home: &'a Path,
    pub(crate) directory: &'a Path,
    /// Loopback port for a harness that [serves itself](Preset::serves_itself).
    pub(crate) port: Option<u16>,
}

/// Additions of a preset to a launch.
#[derive(Debug, Default)]
pub(crate) struct PresetAdditions {
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) args: Vec<String>,
    /// Additional members of the request that opens a session.
    pub(crate) session: serde_json::Map<String, serde_json::Value>,
    /// Files below the home directory, written with mode 0600 and removed at the end of the run.
    pub(crate) files: Vec<(&'static str, String)>,
}

impl Preset {
    /// Presets with a default command.
    pub const NAMED: [Self; 6] = [
        Self::ClaudeCode,
        Self::Codex,
        Self::GeminiCli,
        Self::KimiCode,
        Self::Opencode,
        Self::QwenCode,
    ];

    /// Second part of the runner id.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acp => "acp",
            Self::ClaudeCode => "claude-code",
            Self::Codex => "codex",
            Self::GeminiCli => "gemini-cli",
            Self::KimiCode => "kimi-code",
            Self::Opencode => "opencode",
            Self::QwenCode => "qwen-code",
        }
    }

    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Acp => "ACP agent",
            Self::ClaudeCode => "Claude Code",
            Self::Codex => "Codex",
            Self::GeminiCli => "Gemini CLI",
            Self::KimiCode => "Kimi Code",
            Self::Opencode => "OpenCode",
            Self::QwenCode => "Qwen Code",
        }
    }

    /// Default command. `native`: the command for the harness's own protocol.
    pub(crate) fn command(self, native: bool) -> Option<&'static str> {
        match self {
            Self::Acp => None,
            Self::ClaudeCode if native => Some("claude"),
            Self::ClaudeCode => Some("claude-agent-acp"),
            Self::Codex => Some("codex"),
            Self::GeminiCli => Some("gemini"),
            Self::KimiCode => Some("kimi"),
            Self::Opencode => Some("opencode"),
            Self::QwenCode => Some("qwen"),
        }
    }

    /// npm package of the default command; `None` for `acp`.
    pub(crate) fn package(self, native: bool) -> Option<&'static str> {
        match self {
            Self::Acp => None,
            Self::ClaudeCode if native => Some("@anthropic-ai/claude-code"),
            Self::ClaudeCode => Some("@agentclientprotocol/claude-agent-acp"),
            Self::Codex => Some("@openai/codex"),
            Self::GeminiCli => Some("@google/gemini-cli"),
            Self::KimiCode => Some("@moonshot-ai/kimi-code"),
            Self::Opencode => Some("opencode-ai"),
            Self::QwenCode => Some("@qwen-code/qwen-code"),
        }
    }

    /// Arguments that start ACP mode.
    pub(crate) fn args(self) -> &'static [&'static str] {
        match self {
            Self::Acp | Self::ClaudeCode | Self::Codex => &[],
            Self::KimiCode | Self::Opencode => &["acp"],
            Self::GeminiCli | Self::QwenCode => &["--acp"],
        }
    }

    /// True for the harness's own protocol, false for ACP, by the operator's wish or by default. `None`: the harness
    /// does not support the wish.
    pub(crate) fn native(self, wished: Option<bool>) -> Option<bool> {
        match self {
            Self::ClaudeCode => Some(wished.unwrap_or(true)),
            Self::Codex => wished.unwrap_or(true).then_some(true),
            _ => (!wished.unwrap_or(false)).then_some(false),
        }
    }

    /// True if its processes connect to each other over a loopback port.
    pub(crate) fn serves_itself(self) -> bool {
        self == Self::Opencode
    }

    /// Configuration with the run's models and with a question for every permission.
    pub(crate) fn prepare(self, access: &Access<'_>) -> PresetAdditions {
        match self {
            Self::Acp => generic(access),
            Self::ClaudeCode => claude_code::prepare(access),
            Self::Codex => codex::prepare(access),
            Self::GeminiCli => gemini_cli::prepare(access),
            Self::KimiCode => kimi_code::prepare(access),
            Self::Opencode => opencode::prepare(access),
            Self::QwenCode => qwen_code::prepare(access),
        }
    }
}

/// Environment variables that most agents support.
fn generic(access: &Access<'_>) -> PresetAdditions {
    PresetAdditions {
        env: vec![
            ("OPENAI_BASE_URL", access.openai.clone()),
            ("OPENAI_API_KEY", access.key.to_owned()),
            ("OPENAI_MODEL", access.config.model.clone()),
            ("ANTHROPIC_BASE_URL", access.anthropic.clone()),
            ("ANTHROPIC_API_KEY", access.key.to_owned()),
            ("ANTHROPIC_MODEL", access.config.model.clone()),
        ],
        ..PresetAdditions::default()
    }
}

/// Timeout of one MCP tool call, including the wait for a permission.
fn tool_time(access: &Access<'_>) -> std::time::Duration {
    access.config.approval + TOOL_TIME
}

/// True if the harness has to disable its own writing tools, as far as it can be configured.
fn is_read_only(access: &Access<'_>) -> bool {
    access.config.mode == PermissionMode::ReadOnly
}

#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    use super::Access;
    use crate::config::{Config, PermissionMode};

    pub(crate) fn config(mode: PermissionMode) -> Config {
        Config {
            model: "big/one".to_owned(),
            small_model: "small".to_owned(),
            text_models: vec!["small".to_owned()],
            mode,
            directory: None,
            timeout: None,
            reuses_session: true,
            instructions: String::new(),
            approval: std::time::Duration::from_mins(30),
            shows_reasoning: false,
            repeats_text: false,
            env: Vec::new(),
        }
    }

    pub(crate) fn access(config: &Config) -> Access<'_> {
        Access {
            openai: "http://127.0.0.1:1/openai/v1".to_owned(),
            anthropic: "http://127.0.0.1:1/anthropic".to_owned(),
            mcp: "http://127.0.0.1:1/mcp".to_owned(),
            key: "rk_secret",
            config,
            home: Path::new("/run/a/home"),
            directory: Path::new("/run/a/work"),
            port: Some(7),
        }
    }
}
