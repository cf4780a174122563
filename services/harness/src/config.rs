//! An agent's configuration of a harness, and the form that operators fill in.
//!
//! The form lists the operator's choices only (modes, directories, variables). The gateway then rejects other values
//! when an agent is saved.

use std::path::PathBuf;
use std::time::Duration;

use agent_core::RunFailure;
use protocol::JsonObject;
use protocol::manifest::FormItem;
use protocol::resources::{AgentResources, ModelOperation};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::failure::CONFIG_INVALID;
use crate::settings::{CONVERSATION, HarnessFile};

const ENV: &str = "env-";

/// Actions that a harness may take without a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PermissionMode {
    /// Each permission is a question to a person.
    #[default]
    Ask,
    /// Reads are allowed, all else is refused.
    ReadOnly,
    /// Reads, and edits inside the workspace, are allowed; all else is a question.
    AcceptEdits,
    /// All actions that the sandbox allows.
    Full,
}

/// The configuration of one run.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) model: String,
    pub(crate) small_model: String,
    /// Granted models without image input.
    pub(crate) text_models: Vec<String>,
    pub(crate) mode: PermissionMode,
    /// `None`: the conversation's own.
    pub(crate) directory: Option<PathBuf>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) reuses_session: bool,
    pub(crate) instructions: String,
    pub(crate) approval: Duration,
    pub(crate) shows_reasoning: bool,
    /// Deltas carry the text so far (`all_content`) in addition to the new part.
    pub(crate) repeats_text: bool,
    /// Environment variables that the agent selected, with the operator's values.
    pub(crate) env: Vec<(String, String)>,
}

impl Config {
    /// Reads the configuration of a run with these granted resources. Fails with `harness.config_invalid`.
    pub(crate) fn read(
        config: &JsonObject,
        resources: &AgentResources,
        settings: &HarnessFile,
    ) -> Result<Self, RunFailure> {
        let text = |key: &str| {
            config
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .trim()
        };
        let model = granted(text("model"), resources).ok_or_else(|| {
            invalid("no granted model: set `model` to a model that the agent's resource_policy grants for `stream`")
        })?;
        let small_model = Some(text("small-model"))
            .filter(|id| !id.is_empty())
            .and_then(|id| granted(id, resources))
            .unwrap_or_else(|| model.clone());
        let mode = match config.get("mode") {
            None | Some(Value::Null) => PermissionMode::default(),
            Some(mode) => serde_json::from_value(mode.clone())
                .map_err(|_| invalid("/mode must be ask, read-only, accept-edits or full"))?,
        };
        let directory = match text("workspace") {
            "" | CONVERSATION => None,
            name => Some(settings.directories.get(name).cloned().ok_or_else(|| {
                invalid(&format!(
                    "/workspace: the harness service has no directory `{name}`"
                ))
            })?),
        };
        let flag = |key: &str, default| config.get(key).and_then(Value::as_bool).unwrap_or(default);
        let seconds = |key: &str| config.get(key).and_then(Value::as_u64);
        // Agents select variables by name only; the values stay in the operator's settings.
        let env = settings
            .env
            .iter()
            .filter(|(name, _)| flag(&format!("{ENV}{name}"), false));
        let text_models = resources.models.iter();
        let text_models = text_models.filter(|model| !model.accepts_images());
        Ok(Self {
            model,
            small_model,
            text_models: text_models.map(|model| model.model_id.clone()).collect(),
            mode,
            directory,
            // 0 selects the gateway's maximum, so the service sets no timer of its own.
            timeout: seconds("timeout")
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
            reuses_session: flag("reuse-session", true),
            instructions: text("instructions").to_owned(),
            approval: Duration::from_secs(
                seconds("approval-seconds").unwrap_or(1800).clamp(1, 86_400),
            ),
            shows_reasoning: flag("show-thoughts", false),
            repeats_text: flag("repeat-text", false),
            env: env
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
        })
    }
}

impl Config {
    /// True unless the grant declares text input only.
    pub(crate) fn accepts_images(&self, model: &str) -> bool {
        !self
            .text_models
            .iter()
            .any(|text_model| text_model == model)
    }

    /// Input modalities of this model: `text`, and `image` if it accepts images.
    pub(crate) fn input_modalities(&self, model: &str) -> Value {
        if self.accepts_images(model) {
            json!(["text", "image"])
        } else {
            json!(["text"])
        }
    }
}

fn invalid(message: &str) -> RunFailure {
    RunFailure::new(CONFIG_INVALID, message)
}

/// Granted model with this id, or the first one if `id` names none. Only models with `stream` count.
fn granted(id: &str, resources: &AgentResources) -> Option<String> {
    let mut models = resources
        .models
        .iter()
        .filter(|model| model.operations.contains(&ModelOperation::Stream));
    // Form selectors send `__none__` for an empty selection.
    let named = !matches!(id, "" | "__none__");
    let found = models.find(|model| !named || model.model_id == id);
    found.map(|model| model.model_id.clone())
}

/// Configuration form of a harness under these settings.
pub(crate) fn form(settings: &HarnessFile) -> Vec<FormItem> {
    let options = |names: &[&str]| {
        let options = names
            .iter()
            .map(|name| json!({"name": name, "label": {"en_US": name}}));
        options.collect::<Value>()
    };
    let mut workspaces = vec![CONVERSATION];
    workspaces.extend(settings.directories.keys().map(String::as_str));
    let mut items = vec![
        json!({"type": "llm-model-selector", "name": "model", "label": {"en_US": "Model"}, "description": {"en_US": "The granted model that the harness uses"}, "required": true}),
        json!({"type": "llm-model-selector", "name": "small-model", "label": {"en_US": "Small model"}, "description": {"en_US": "For titles and summaries; the model above when absent"}}),
        json!({"type": "select", "name": "mode", "label": {"en_US": "Permissions"}, "description": {"en_US": "What the harness may do without a question"}, "default": "ask", "options": options(&["ask", "read-only", "accept-edits", "full"])}),
        json!({"type": "select", "name": "workspace", "label": {"en_US": "Workspace"}, "description": {"en_US": "Each conversation has a directory of its own, or all share one of the operator's"}, "default": CONVERSATION, "options": options(&workspaces)}),
        json!({"type": "integer", "name": "timeout", "label": {"en_US": "Timeout"}, "description": {"en_US": "Seconds that a run may take; 0 for the gateway's longest"}, "default": 3600}),
        json!({"type": "boolean", "name": "reuse-session", "label": {"en_US": "Keep the session"}, "description": {"en_US": "The next message of a conversation continues the same session"}, "default": true}),
        json!({"type": "text", "name": "instructions", "label": {"en_US": "Instructions"}, "description": {"en_US": "Text for the harness at the start of a session"}, "default": ""}),
        json!({"type": "integer", "name": "approval-seconds", "label": {"en_US": "Time for approvals"}, "description": {"en_US": "Seconds, 1 to 86,400, before a permission that was not answered counts as refused"}, "default": 1800}),
        json!({"type": "boolean", "name": "show-thoughts", "label": {"en_US": "Show thoughts"}, "description": {"en_US": "Adds the model's thoughts to the ledger as x.harness.thought"}, "default": false}),
        json!({"type": "boolean", "name": "repeat-text", "label": {"en_US": "Repeat the text"}, "description": {"en_US": "Some deltas carry the text so far as all_content, which multiplies the events of a long answer"}, "default": false}),
    ];
    items.extend(settings.env.keys().map(|name| {
        json!({"type": "boolean", "name": format!("{ENV}{name}"), "label": {"en_US": name}, "description": {"en_US": format!("Gives the harness the operator's variable {name}")}, "default": false})
    }));
    serde_json::from_value(Value::Array(items)).expect("the form is a list of fields")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> HarnessFile {
        let text = "secret = \"env:S\"\nworkspaces = \"/tmp/w\"\n[directories]\nsite = \"/tmp\"\n[env]\nA = \"1\"\nB = \"2\"\n[[harnesses]]\npreset = \"opencode\"";
        HarnessFile::parse(text).unwrap()
    }

    fn read(config: &Value) -> Result<Config, RunFailure> {
        let resources = json!({"models": [
            {"model_id": "counts", "operations": ["count_tokens"]},
            {"model_id": "a", "operations": ["stream"]}, {"model_id": "b", "operations": ["stream", "invoke"]},
        ]});
        let resources = serde_json::from_value(resources).unwrap();
        Config::read(config.as_object().unwrap(), &resources, &settings())
    }

    #[test]
    fn reads_operator_options() {
        let config = read(&json!({"model": "b", "mode": "accept-edits", "workspace": "site", "env-B": true, "timeout": 0})).unwrap();
        assert_eq!(
            (config.model.as_str(), config.small_model.as_str()),
            ("b", "b")
        );
        assert_eq!(config.mode, PermissionMode::AcceptEdits);
        assert_eq!(
            config.directory.unwrap(),
            PathBuf::from("/tmp").canonicalize().unwrap()
        );
        assert_eq!(config.env, [("B".to_owned(), "2".to_owned())]);
        assert_eq!(config.timeout, None);
    }

    #[test]
    fn rejects_ungranted_or_unoffered_values() {
        for (config, part) in [
            (json!({"model": "counts"}), "no granted model"),
            (json!({"model": "a", "mode": "yolo"}), "/mode"),
            (json!({"model": "a", "workspace": "/etc"}), "/workspace"),
        ] {
            let failure = read(&config).unwrap_err();
            assert!(failure.message.contains(part), "{}", failure.message);
        }
    }

    #[test]
    fn form_lists_operator_choices() {
        let form = serde_json::to_value(form(&settings())).unwrap();
        let names: Vec<_> = form
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["name"].as_str().unwrap())
            .collect();
        assert_eq!(names[0], "model");
        assert!(names.contains(&"env-A") && names.contains(&"env-B"));
        assert_eq!(form[3]["options"][1]["name"], "site");
    }
}
