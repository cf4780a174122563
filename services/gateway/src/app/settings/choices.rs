//! Models and knowledge bases that the `config` of an agent names, and that its runs do not get.

use domain::authorization::ResourceCatalog;
use domain::form::selected;
use protocol::admin::{AgentSpec, IdList};
use protocol::id::RunnerId;
use protocol::manifest::FormItem;
use serde_json::{Value, json};

use super::PolicyWarning;
use crate::config::closest;

/// Warnings about names that the agent's policy does not grant, or that the configuration does not declare.
pub(crate) fn ungranted_choices<'a>(
    agents: &'a [AgentSpec],
    catalog: &ResourceCatalog,
) -> Vec<PolicyWarning<'a>> {
    let id: RunnerId = local_agent::manifest::RUNNER_ID
        .parse()
        .expect("the id of the Local Agent is valid");
    let form = local_agent::manifest::manifest(id.clone()).config_schema;
    let models = catalog.models.iter();
    let models: Vec<_> = models.map(|model| model.model_id.as_str()).collect();
    let bases = catalog.knowledge_bases.iter();
    let bases: Vec<_> = bases.map(|base| base.kb_id.as_str()).collect();
    let mut found = Vec::new();
    for (index, agent) in agents.iter().enumerate().filter(|(_, agent)| agent.enabled) {
        let policy = &agent.resource_policy;
        // Only the form of the Local Agent is known before its endpoint is discovered.
        let selectors = if agent.runner_id == id {
            form.clone()
        } else {
            model_selectors(agent, &models)
        };
        for item in &selectors {
            let chosen = selected(std::slice::from_ref(item), &agent.config);
            let chosen_models = chosen.models.into_iter().flatten();
            let chosen_models = chosen_models.map(|model| model.model_id).collect();
            let chosen_bases = chosen.knowledge_bases.unwrap_or_default();
            for (kind, key, chosen, granted, declared) in [
                ("model", "models", chosen_models, &policy.models, &models),
                (
                    "knowledge base",
                    "knowledge_bases",
                    chosen_bases,
                    &policy.knowledge_bases,
                    &bases,
                ),
            ] {
                let reasons = chosen.iter().filter_map(|name| {
                    let reason = reason(name.trim(), key, granted, declared)?;
                    Some((name, reason))
                });
                found.extend(reasons.map(|(name, reason)| PolicyWarning {
                    agent: &agent.name,
                    pointer: format!("agents[{index}].config.{}", item.name),
                    text: format!(
                        "the config of agent {} names the {kind} {name}, which {reason}",
                        agent.name
                    ),
                }));
            }
        }
    }
    found
}

/// Selectors of a runner whose form is unknown here: those of coding agents, and members that name a declared model.
fn model_selectors(agent: &AgentSpec, models: &[&str]) -> Vec<FormItem> {
    let names_model = |(name, value): &(&String, &Value)| {
        let value = value.as_str().unwrap_or_default();
        selects_harness_model(&agent.runner_id, name) && !value.trim().is_empty()
            || name.contains("model") && models.contains(&value)
    };
    let named = agent.config.iter().filter(names_model);
    let items = named.map(|(name, _)| json!({"type": "llm-model-selector", "name": name}));
    let items = items.filter_map(|item| serde_json::from_value(item).ok());
    items.collect()
}

#[cfg(feature = "harness")]
fn selects_harness_model(runner: &RunnerId, member: &str) -> bool {
    harness::preset::is_runner(runner) && harness::preset::MODEL_SELECTORS.contains(&member)
}

/// This build does not know the members of coding agents: it warns only of declared models.
#[cfg(not(feature = "harness"))]
fn selects_harness_model(_runner: &RunnerId, _member: &str) -> bool {
    false
}

/// `None`: runs get the resource, or the policy itself names it wrongly.
fn reason(name: &str, key: &str, granted: &IdList, declared: &[&str]) -> Option<String> {
    if !granted.names(name) {
        return Some(format!("its resource_policy.{key} does not grant"));
    }
    // A policy with a list of ids is checked by `unknown_policy_names`.
    let is_all = matches!(granted, IdList::All(_));
    (is_all && !declared.contains(&name)).then(|| {
        let meant = closest(name, declared.iter().copied());
        let meant = meant.map(|name| format!("; did you mean {name}?"));
        format!(
            "the configuration does not declare{}",
            meant.unwrap_or_default()
        )
    })
}
