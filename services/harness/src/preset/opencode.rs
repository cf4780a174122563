//! `OpenCode` (npm `opencode-ai`): configured by one variable, so that the workspace cannot change its permissions.

use serde_json::json;

use super::access::{Access, PresetAdditions};

/// Context and output limits of a model, in tokens: defaults, because the grant declares none.
const CONTEXT: u64 = 128_000;
const OUTPUT: u64 = 8_192;

pub(super) fn prepare(access: &Access<'_>) -> PresetAdditions {
    let config = access.config;
    let (writes, commands) = if access.is_read_only() {
        ("deny", "deny")
    } else {
        ("ask", "ask")
    };
    let model = |id: &str| {
        json!({
            "name": id, "tool_call": true, "limit": {"context": CONTEXT, "output": OUTPUT},
            // Without these members, OpenCode drops images.
            "attachment": config.accepts_images(id),
            "modalities": {"input": config.input_modalities(id), "output": ["text"]},
        })
    };
    let content = json!({
        "autoupdate": false, "share": "disabled",
        "model": format!("runnel/{}", config.model), "small_model": format!("runnel/{}", config.small_model),
        "enabled_providers": ["runnel"],
        "provider": {"runnel": {
            "npm": "@ai-sdk/openai-compatible", "name": "Runnel",
            "options": {"baseURL": access.openai, "apiKey": "{env:RUNNEL_KEY}"},
            "models": {config.model.as_str(): model(&config.model), config.small_model.as_str(): model(&config.small_model)},
        }},
        "experimental": {"mcp_timeout": access.tool_time().as_millis()},
        // The relay decides tool calls of the MCP server.
        "permission": {
            "edit": writes, "bash": commands, "webfetch": "ask", "websearch": "deny",
            "external_directory": "ask", "runnel_*": "allow",
        },
    });
    let on = || "1".to_owned();
    PresetAdditions {
        env: vec![
            ("OPENCODE_CONFIG_CONTENT", content.to_string()),
            ("RUNNEL_KEY", access.key.to_owned()),
            // Without a password, any local process could execute commands over its port.
            (
                "OPENCODE_SERVER_PASSWORD",
                uuid::Uuid::new_v4().simple().to_string(),
            ),
            ("OPENCODE_DISABLE_AUTOUPDATE", on()),
            ("OPENCODE_DISABLE_MODELS_FETCH", on()),
            ("OPENCODE_DISABLE_PROJECT_CONFIG", on()),
            ("OPENCODE_DISABLE_DEFAULT_PLUGINS", on()),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", on()),
            ("OPENCODE_DISABLE_SHARE", on()),
            ("OPENCODE_PURE", on()),
        ],
        args: access
            .port
            .map(|port| vec!["--port".to_owned(), port.to_string()])
            .unwrap_or_default(),
        ..PresetAdditions::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::testing::{access, config};
    use super::*;
    use crate::config::PermissionMode;

    #[test]
    fn asks_for_writes_and_removes_them_read_only() {
        for (mode, expected) in [
            (PermissionMode::Ask, "ask"),
            (PermissionMode::Full, "ask"),
            (PermissionMode::ReadOnly, "deny"),
        ] {
            let config = config(mode);
            let prepared = prepare(&access(&config));
            let content: Value = serde_json::from_str(&prepared.env[0].1).unwrap();
            assert_eq!(content["permission"]["edit"], expected);
            assert_eq!(content["permission"]["bash"], expected);
            assert_eq!(content["model"], "runnel/big/one");
            let models = &content["provider"]["runnel"]["models"];
            assert_eq!(
                models["big/one"]["modalities"]["input"],
                json!(["text", "image"])
            );
            assert_eq!(models["small"]["modalities"]["input"], json!(["text"]));
            assert!(
                !prepared.env[0].1.contains("rk_secret"),
                "the configuration contains the key"
            );
        }
    }
}
