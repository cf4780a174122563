//! Models and knowledge bases that the `config` of a Local Agent names, and that its runs do not get.

use domain::authorization::ResourceCatalog;
use domain::form::selected;
use protocol::admin::{AgentSpec, IdList};
use protocol::id::RunnerId;

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
    let local = |(_, agent): &(usize, &AgentSpec)| agent.enabled && agent.runner_id == id;
    for (index, agent) in agents.iter().enumerate().filter(local) {
        let policy = &agent.resource_policy;
        for item in &form {
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

/// `None`: runs get the resource, or the policy itself names it wrongly.
fn reason(name: &str, key: &str, granted: &IdList, declared: &[&str]) -> Option<String> {
    if !granted.names(name) {
        return Some(format!("its resource_policy.{key} does not grant"));
    }
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
