//! The harnesses that are known by name: how each is started, and how it is pointed at its run's models.

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

/// Time for a call of an MCP tool itself.
const TOOL_TIME: std::time::Duration = std::time::Duration::from_mins(10);

/// A harness that is known by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// Any agent that speaks ACP, by the operator's command.
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

/// Whether a runner is a harness of this service.
pub fn is_runner(id: &protocol::id::RunnerId) -> bool {
    let presets = Preset::NAMED.into_iter().chain([Preset::Acp]);
    let mut prefixes = presets.map(|preset| format!("plugin:runnel/{}/", preset.name()));
    let id = id.to_string();
    prefixes.any(|prefix| id.starts_with(&prefix))
}

/// How a harness reaches the models of its run.
pub(crate) struct Access<'a> {
    /// The base URL of the OpenAI faces.
    pub(crate) openai: String,
    /// The base URL of the Anthropic face.
    pub(crate) anthropic: String,
    /// The URL of the MCP server.
    pub(crate) mcp: String,
    /// The key for all of them.
    pub(crate) key: &'a str,
    pub(crate) config: &'a Config,
    pub(crate) home: &'a Path,
    pub(crate) directory: &'a Path,
    /// A loopback port of its own, where it [serves itself](Preset::serves_itself).
    pub(crate) port: Option<u16>,
}

/// Additions of a preset to a launch.
#[derive(Debug, Default)]
pub(crate) struct PresetAdditions {
    pub(crate) env: Vec<(&'static str, String)>,
    pub(crate) args: Vec<String>,
    /// Members that a session is opened with beside its directory and MCP server.
    pub(crate) session: serde_json::Map<String, serde_json::Value>,
    /// Files below the home directory, written with mode 0600 and removed at the end of the run.
    pub(crate) files: Vec<(&'static str, String)>,
}

impl Preset {
    /// Those with a command of their own.
    pub const NAMED: [Self; 6] = [
        Self::ClaudeCode,
        Self::Codex,
        Self::GeminiCli,
        Self::KimiCode,
        Self::Opencode,
        Self::QwenCode,
    ];

    /// The second part of the runner id.
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

    /// The command where the settings name none; another one for the harness's own protocol.
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

    /// The npm package of its command; `None` for `acp`.
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

    /// The arguments of ACP mode.
    pub(crate) fn args(self) -> &'static [&'static str] {
        match self {
            Self::Acp | Self::ClaudeCode | Self::Codex => &[],
            Self::KimiCode | Self::Opencode => &["acp"],
            Self::GeminiCli | Self::QwenCode => &["--acp"],
        }
    }

    /// Whether it is served by its own protocol, as the operator wishes or because it has to be. `None`: the wish cannot
    /// be met.
    pub(crate) fn native(self, wished: Option<bool>) -> Option<bool> {
        match self {
            Self::ClaudeCode => Some(wished.unwrap_or(true)),
            Self::Codex => wished.unwrap_or(true).then_some(true),
            _ => (!wished.unwrap_or(false)).then_some(false),
        }
    }

    /// Whether its processes speak to each other over a loopback port.
    pub(crate) fn serves_itself(self) -> bool {
        self == Self::Opencode
    }

    /// Launch that uses the run's models and asks for every permission.
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

/// Variables that most agents of other makers read.
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

/// Time for one call of an MCP tool: a person may be asked first.
fn tool_time(access: &Access<'_>) -> std::time::Duration {
    access.config.approval + TOOL_TIME
}

/// Whether tools that write are taken away from the harness itself, where it lets itself be told.
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
            shows_thoughts: false,
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
