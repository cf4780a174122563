//! Presets of supported harnesses: command, arguments, and configuration for the models of a run.

pub(crate) mod access;
pub(crate) mod claude_code;
pub(crate) mod setup;

mod codex;
mod gemini_cli;
mod kimi_code;
mod opencode;
mod qwen_code;

use serde::Deserialize;

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
}

#[cfg(test)]
pub(crate) mod testing {
    use std::path::Path;

    use super::access::Access;
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
