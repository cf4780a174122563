//! Validates an agent's configuration against its runner's form (`config_schema`).

use protocol::JsonObject;
use protocol::admin::Fault;
use protocol::manifest::FormItem;
use protocol::resources::ModelOperation;
use serde_json::Value;

/// Key of the run timeout in seconds. The gateway reads this key, also without a form.
pub const TIMEOUT: &str = "timeout";

/// Returns all faults of `config`, with pointers below `/config`.
pub fn check_config(schema: &[FormItem], config: &JsonObject) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (key, value) in config {
        let pointer = format!("/config/{}", escape_pointer(key));
        match schema.iter().find(|item| item.name == *key) {
            Some(item) => {
                if let Err(message) = check_value(item, value) {
                    faults.push(Fault::new(pointer, message));
                }
            }
            // The gateway reads the timeout itself, so a form need not declare it.
            None if key == TIMEOUT => {}
            None => faults.push(Fault::new(
                pointer,
                "is no field of the runner's config_schema",
            )),
        }
    }
    // A default satisfies `required`; only fields without one must be configured.
    for item in schema
        .iter()
        .filter(|item| item.required && item.default.is_null())
    {
        if config.get(&item.name).is_none_or(Value::is_null) {
            let pointer = format!("/config/{}", escape_pointer(&item.name));
            faults.push(Fault::new(
                pointer,
                "is required by the runner's config_schema",
            ));
        }
    }
    faults
}

/// Returns the configuration with the form's defaults for absent keys.
pub fn with_defaults(schema: &[FormItem], config: &JsonObject) -> JsonObject {
    let mut filled = config.clone();
    for item in schema.iter().filter(|item| !item.default.is_null()) {
        filled
            .entry(item.name.clone())
            .or_insert_with(|| item.default.clone());
    }
    filled
}

/// Escapes a key for a JSON pointer (RFC 6901).
pub fn escape_pointer(key: &str) -> String {
    // `~` first: the other order would escape the tilde of `~1` again.
    key.replace('~', "~0").replace('/', "~1")
}

fn check_value(item: &FormItem, value: &Value) -> Result<(), &'static str> {
    // Null resets an optional field to its default.
    if value.is_null() && !item.required {
        return Ok(());
    }
    let (fits, message) = match item.kind.as_str() {
        "string" | "text" => (value.is_string(), "must be a text"),
        "integer" => (value.is_i64() || value.is_u64(), "must be an integer"),
        "number" => (value.is_number(), "must be a number"),
        "boolean" => (value.is_boolean(), "must be true or false"),
        "array" => (value.is_array(), "must be a list"),
        "select" => (is_option(item, value), "must be one of the options"),
        "knowledge-base-multi-selector" | "select-knowledge-bases" => (
            texts(value).is_some(),
            "must be a list of knowledge base ids",
        ),
        "llm-model-selector" | "select-llm-model" | "rerank-model-selector" => {
            (value.is_string(), "must be a model id")
        }
        "model-fallback-selector" => (
            value.is_string() || value.get("primary").is_some_and(Value::is_string),
            "must be a model id, or an object with primary and fallbacks",
        ),
        // Newer forms may use kinds that this version does not list; the runner validates them.
        _ => (true, ""),
    };
    if fits { Ok(()) } else { Err(message) }
}

fn is_option(item: &FormItem, value: &Value) -> bool {
    let Some(options) = &item.options else {
        return value.is_string();
    };
    // Custom values are free: the options are only proposals.
    if item.allow_custom {
        return true;
    }
    options.iter().any(|option| {
        // Options carry their value as `name`; some peers write `value`.
        option
            .get("name")
            .or_else(|| option.get("value"))
            .is_some_and(|name| name == value)
    })
}

fn texts(value: &Value) -> Option<Vec<String>> {
    value
        .as_array()?
        .iter()
        .map(|item| item.as_str().map(str::to_owned))
        .collect()
}

/// Values of a form's selectors. `None`: the form has no selector of that kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectorValues {
    pub models: Option<Vec<SelectedModel>>,
    pub knowledge_bases: Option<Vec<String>>,
    pub tools: Option<Vec<String>>,
}

/// A selected model, and the operations that its selector grants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelectedModel {
    pub model_id: String,
    pub operations: &'static [ModelOperation],
}

const CHAT: &[ModelOperation] = &[
    ModelOperation::Invoke,
    ModelOperation::Stream,
    ModelOperation::CountTokens,
];
const RERANK: &[ModelOperation] = &[ModelOperation::Rerank];

/// Reads the selectors of a form: layer `config_selector` of the authorization.
pub fn selected(schema: &[FormItem], config: &JsonObject) -> SelectorValues {
    let mut selected = SelectorValues::default();
    for item in schema {
        let value = config.get(&item.name).unwrap_or(&Value::Null);
        match item.kind.as_str() {
            "llm-model-selector" | "select-llm-model" | "model-fallback-selector" => {
                // A form may have several selectors of models: the grant is their union.
                select_models(selected.models.get_or_insert_default(), value, CHAT);
            }
            "rerank-model-selector" => {
                select_models(selected.models.get_or_insert_default(), value, RERANK);
            }
            "knowledge-base-multi-selector" | "select-knowledge-bases" => {
                let bases = selected.knowledge_bases.get_or_insert_default();
                bases.extend(
                    texts(value)
                        .unwrap_or_default()
                        .into_iter()
                        .filter(is_chosen),
                );
            }
            _ => {}
        }
    }
    let has = |name: &str| schema.iter().any(|item| item.name == name);
    // With the switch on or absent, a stored list of tools is not in effect and must not narrow them.
    if has("tools") && config.get("enable-all-tools") == Some(&Value::Bool(false)) {
        selected.tools = Some(config.get("tools").and_then(texts).unwrap_or_default());
    }
    selected
}

fn select_models(
    models: &mut Vec<SelectedModel>,
    value: &Value,
    operations: &'static [ModelOperation],
) {
    // The fallback selector stores an object, the plain selectors a text.
    let primary = value
        .as_str()
        .or_else(|| value.get("primary")?.as_str())
        .map(str::to_owned);
    let fallbacks = value.get("fallbacks").and_then(texts).unwrap_or_default();
    models.extend(
        primary
            .into_iter()
            .chain(fallbacks)
            .filter(is_chosen)
            .map(|model_id| SelectedModel {
                model_id,
                operations,
            }),
    );
}

// Existing forms write "nothing" in three ways.
#[expect(clippy::ptr_arg, reason = "used as a filter over owned strings")]
fn is_chosen(id: &String) -> bool {
    !matches!(id.as_str(), "" | "__none__" | "__none")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Vec<FormItem> {
        serde_json::from_value(json!([
            {"type": "model-fallback-selector", "name": "model", "required": true},
            {"type": "rerank-model-selector", "name": "rerank", "default": ""},
            {"type": "knowledge-base-multi-selector", "name": "bases", "default": []},
            {"type": "select", "name": "mode", "options": [{"name": "a"}, {"name": "b"}], "default": "a"},
            {"type": "integer", "name": "top/k"},
        ]))
        .unwrap()
    }

    fn check(config: &Value, pointers: &[&str]) {
        let faults = check_config(&schema(), config.as_object().unwrap());
        let mut found: Vec<_> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        found.sort_unstable();
        assert_eq!(found, pointers, "{config}");
    }

    #[test]
    fn reports_config_faults_by_pointer() {
        check(&json!({"model": "m"}), &[]);
        check(
            &json!({"model": {"primary": "m", "fallbacks": []}, "timeout": 2.5}),
            &[],
        );
        check(&json!({}), &["/config/model"]);
        check(
            &json!({"model": 1, "mode": "c", "top/k": "5", "x": 1}),
            &[
                "/config/mode",
                "/config/model",
                "/config/top~1k",
                "/config/x",
            ],
        );
    }

    #[test]
    fn reads_models_and_knowledge_bases_from_selectors() {
        let config = json!({"model": {"primary": "m", "fallbacks": ["n", "__none__"]}, "rerank": "r", "bases": ["k"]});
        let selected = selected(&schema(), config.as_object().unwrap());
        let models: Vec<_> = selected
            .models
            .unwrap()
            .into_iter()
            .map(|m| (m.model_id, m.operations.len()))
            .collect();
        assert_eq!(
            models,
            [
                ("m".to_owned(), 3),
                ("n".to_owned(), 3),
                ("r".to_owned(), 1)
            ]
        );
        assert_eq!(selected.knowledge_bases.unwrap(), ["k"]);
        assert_eq!(selected.tools, None);
    }
}
