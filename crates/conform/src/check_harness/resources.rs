//! Resources that the mock host offers to runs: a model, a tool and a knowledge base, and further ones of the names
//! that the agent's configuration selects.

use crate::mock_host::{mock_knowledge_base, mock_model, mock_tool};
use domain::authorization::ResourceCatalog;
use domain::form::SelectorValues;
use protocol::JsonObject;
use protocol::manifest::FormItem;
use serde_json::{Value, json};

const MODEL: &str = "conform-model";
const TOOL: &str = "conform_lookup";
const KNOWLEDGE_BASE: &str = "conform-knowledge";

/// Selects the mock's resources where the configuration selects none.
pub(super) fn fill_selectors(schema: &[FormItem], config: &mut JsonObject) {
    for item in schema {
        let value = match item.kind.as_str() {
            "llm-model-selector"
            | "select-llm-model"
            | "model-fallback-selector"
            | "rerank-model-selector" => json!(MODEL),
            "knowledge-base-multi-selector" | "select-knowledge-bases" => json!([KNOWLEDGE_BASE]),
            _ => continue,
        };
        if is_unset(config.get(&item.name)) {
            config.insert(item.name.clone(), value);
        }
    }
}

/// True if a selector has no value, in each notation that forms use.
fn is_unset(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty() || text.starts_with("__none"),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(members)) => is_unset(members.get("primary")),
        Some(_) => false,
    }
}

/// The catalog of a run. The runner's manifest bounds what is granted of it.
pub(super) fn catalog_for(selected: &SelectorValues) -> ResourceCatalog {
    let models = selected.models.iter().flatten();
    let models = models.map(|model| model.model_id.as_str());
    let tools = selected.tools.iter().flatten().map(String::as_str);
    let bases = selected
        .knowledge_bases
        .iter()
        .flatten()
        .map(String::as_str);
    ResourceCatalog {
        models: named(MODEL, models).map(mock_model).collect(),
        tools: named(TOOL, tools).map(mock_tool).collect(),
        knowledge_bases: named(KNOWLEDGE_BASE, bases)
            .map(mock_knowledge_base)
            .collect(),
        ..ResourceCatalog::default()
    }
}

/// The mock's own name, and the selected ones, each once.
fn named<'a>(
    own: &'a str,
    selected: impl Iterator<Item = &'a str>,
) -> impl Iterator<Item = &'a str> {
    // The catalog must not list the mock's resource twice.
    let others: std::collections::BTreeSet<_> = selected.filter(|name| *name != own).collect();
    std::iter::once(own).chain(others)
}

#[cfg(test)]
mod tests {
    use domain::form::{check_config, selected};

    use super::*;

    #[test]
    fn fills_empty_selectors_and_keeps_chosen_names() {
        let schema: Vec<FormItem> = serde_json::from_value(json!([
            {"type": "model-fallback-selector", "name": "model", "required": true},
            {"type": "rerank-model-selector", "name": "rerank", "default": ""},
            {"type": "knowledge-base-multi-selector", "name": "bases", "default": []},
            {"type": "string", "name": "tone"},
        ]))
        .unwrap();
        let mut config = json!({"rerank": "", "bases": ["handbook"]});
        let config = config.as_object_mut().unwrap();
        fill_selectors(&schema, config);
        let filled = json!({"model": MODEL, "rerank": MODEL, "bases": ["handbook"]});
        assert_eq!(json!(config), filled);
        assert_eq!(check_config(&schema, config), []);
        let catalog = catalog_for(&selected(&schema, config));
        let bases = catalog.knowledge_bases.iter();
        let bases: Vec<_> = bases.map(|base| base.kb_id.as_str()).collect();
        assert_eq!(bases, [KNOWLEDGE_BASE, "handbook"]);
        assert_eq!(catalog.models.len(), 1);
    }
}
