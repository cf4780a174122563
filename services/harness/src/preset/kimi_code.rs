//! Kimi Code (npm `@moonshot-ai/kimi-code`): configured by variables. It asks for every write in its default mode.

use super::access::{Access, PresetAdditions};

pub(super) fn prepare(access: &Access<'_>) -> PresetAdditions {
    let capabilities = if access.config.accepts_images(&access.config.model) {
        "image_in,thinking"
    } else {
        "thinking"
    };
    let home = access.home.join(".kimi-code");
    PresetAdditions {
        env: vec![
            ("KIMI_CODE_HOME", home.to_string_lossy().into_owned()),
            ("KIMI_MODEL_NAME", access.config.model.clone()),
            ("KIMI_MODEL_PROVIDER_TYPE", "openai".to_owned()),
            ("KIMI_MODEL_BASE_URL", access.openai.clone()),
            ("KIMI_MODEL_API_KEY", access.key.to_owned()),
            ("KIMI_MODEL_MAX_CONTEXT_SIZE", "128000".to_owned()),
            ("KIMI_MODEL_CAPABILITIES", capabilities.to_owned()),
            (
                "KIMI_MCP_TOOL_TIMEOUT_MS",
                access.tool_time().as_millis().to_string(),
            ),
            ("KIMI_CODE_NO_AUTO_UPDATE", "1".to_owned()),
            ("KIMI_DISABLE_TELEMETRY", "1".to_owned()),
        ],
        ..PresetAdditions::default()
    }
}
