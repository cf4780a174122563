//! Warnings for kept settings that will not work: placeholders of LangBot's forms, or a missing model.

use protocol::JsonObject;
use serde_json::Value;

use super::draft::SettingsDraft;
use super::families::Family;
use super::report::{FieldAction, member};

/// Notes settings that make the agent's runs fail.
pub(super) fn warn(
    family: Option<&'static Family>,
    section: &JsonObject,
    at: &str,
    draft: &mut SettingsDraft<'_, '_>,
) {
    if family.is_some_and(|family| family.uses_host) {
        let model = draft.config.iter().find(|(name, _)| name == "model");
        if !model.is_some_and(|(_, model)| names_a_model(model)) {
            let note = draft.note(FieldAction::Warning, member(at, "model"));
            note.target = Some("config.model".to_owned());
            note.why = Some(
                "no model is chosen: every run of this agent fails until config.model.primary and \
                 resource_policy.models name one"
                    .to_owned(),
            );
        }
    }
    for (name, value) in section {
        if value.as_str().is_some_and(is_placeholder) {
            draft.note(FieldAction::Warning, member(at, name)).why = Some(
                "is the example of LangBot's form: put in the real value before this agent gets events"
                    .to_owned(),
            );
        }
    }
}

fn names_a_model(model: &Value) -> bool {
    let chosen = |value: &Value| {
        let id = value.as_str().unwrap_or_default().trim();
        !matches!(id, "" | "__none__" | "__none")
    };
    let fallbacks = model["fallbacks"].as_array();
    chosen(model)
        || chosen(&model["primary"])
        || fallbacks.is_some_and(|fallbacks| fallbacks.iter().any(chosen))
}

/// Returns true for a placeholder, such as `http://your-n8n-webhook-url`.
fn is_placeholder(text: &str) -> bool {
    let text = text.trim().to_lowercase();
    let is_marked = text.starts_with(['<', '{', '[']);
    if text.contains(char::is_whitespace) && !is_marked {
        // A text with spaces is a sentence, not a placeholder, unless it is in brackets.
        return false;
    }
    let bare = text
        .split_once("://")
        .map_or(text.as_str(), |(_, rest)| rest);
    let bare = bare.trim_start_matches(['<', '{', '[', ' ']);
    let host = bare.split(['/', ':', '?']).next().unwrap_or_default();
    let is_example = |suffix: &str| text.contains("://") && host.ends_with(suffix);
    (is_marked && bare.starts_with("your "))
        || [
            "your-",
            "your_",
            "xxxx",
            "sk-xxx",
            "changeme",
            "change-me",
            "replace-me",
        ]
        .iter()
        .any(|start| bare.starts_with(start))
        || host.split('.').any(|label| label.starts_with("your-"))
        || [".invalid", "example.com"].into_iter().any(is_example)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_placeholders_from_values() {
        for text in [
            "http://your-n8n-webhook-url",
            "https://n8n.your-domain.com/webhook/1",
            "your-api-key",
            "<your api key>",
            "sk-xxxxxxxx",
            "https://example.com/hook",
        ] {
            assert!(is_placeholder(text), "{text}");
        }
        for text in [
            "http://n8n.test/hook/your-flow",
            "yours",
            "Tell your users the truth.",
            "Your name is Bot.",
            "sk-live-1",
            "https://n8n.example/webhook/5",
        ] {
            assert!(!is_placeholder(text), "{text}");
        }
    }
}
