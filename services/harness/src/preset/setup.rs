//! Configuration of a harness for a run, by its preset.

use super::access::{Access, PresetAdditions};
use super::{Preset, claude_code, codex, gemini_cli, kimi_code, opencode, qwen_code};

/// Configuration with the run's models and with a question for every permission.
pub(crate) fn prepare(preset: Preset, access: &Access<'_>) -> PresetAdditions {
    match preset {
        Preset::Acp => generic(access),
        Preset::ClaudeCode => claude_code::prepare(access),
        Preset::Codex => codex::prepare(access),
        Preset::GeminiCli => gemini_cli::prepare(access),
        Preset::KimiCode => kimi_code::prepare(access),
        Preset::Opencode => opencode::prepare(access),
        Preset::QwenCode => qwen_code::prepare(access),
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
