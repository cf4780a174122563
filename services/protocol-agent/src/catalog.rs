//! Catalogue of a run: granted tools, agents and remotes, with their declared effects.

use std::collections::BTreeSet;

use action_graph::action::{AUTHORITY, Effect, ExecutorKind, Idempotency};
use action_graph::catalog::{Catalog, CatalogEntry};
use futures_util::FutureExt as _;
use futures_util::stream::{self, StreamExt as _};
use protocol::context::AgentRunContext;
use protocol::resources::{AgentOperation, AgentResource, ToolEffect, ToolOperation, ToolResource};
use runner_kit::HostError;
use serde_json::{Value, json};

use crate::config::{Config, Delegation, Remote};
use crate::host::GraphAgentHost;

/// Name of the built-in tool that searches knowledge bases.
pub(crate) const KNOWLEDGE: &str = "knowledge.search";
/// Concurrent requests for tool descriptions.
const AT_ONCE: usize = 8;

/// Builds the catalogue of a run. A tool without a readable schema is skipped.
pub(crate) async fn open(
    host: &impl GraphAgentHost,
    context: &AgentRunContext,
    config: &Config,
) -> Result<Catalog, HostError> {
    let resources = &context.resources;
    let granted = resources.tools.iter();
    let granted = granted.filter(|tool| tool.operations.contains(&ToolOperation::Call));
    let described: Vec<_> = granted
        .map(|tool| tool_entry(host, tool, config).boxed())
        .collect();
    // `buffered` preserves the order of the grant, so that the catalogue is the same in every run.
    let described: Vec<_> = stream::iter(described).buffered(AT_ONCE).collect().await;
    let mut entries = Vec::new();
    for entry in described {
        entries.extend(entry?);
    }
    if !config.knowledge_bases.is_empty() {
        entries.push(knowledge());
    }
    if config.delegation == Delegation::Host && context.context.available_apis.child_runs {
        let agents = resources.agents.iter();
        entries.extend(agents.filter_map(agent_entry));
    }
    let has_tool = |remote: &Remote| {
        resources
            .tools
            .iter()
            .any(|tool| tool.tool_name == remote.tool)
    };
    entries.extend(
        config
            .remotes
            .iter()
            .map(|remote| remote_entry(remote, has_tool(remote))),
    );
    Ok(Catalog::new(entries))
}

async fn tool_entry(
    host: &impl GraphAgentHost,
    tool: &ToolResource,
    config: &Config,
) -> Result<Option<CatalogEntry>, HostError> {
    let name = &tool.tool_name;
    let (description, parameters) = match &tool.parameters {
        Some(parameters) => (
            tool.description.clone().unwrap_or_default(),
            parameters.clone(),
        ),
        None => match host.tool(name).await {
            Ok(detail) => (detail.description, detail.parameters),
            // An ended run must not continue with an incomplete catalogue.
            Err(failed) if failed.is_cancelled() || failed.is_deadline_exceeded() => {
                return Err(failed);
            }
            Err(failed) => {
                tracing::warn!(tool.name = name, "tool {name} is left out: {failed}");
                return Ok(None);
            }
        },
    };
    let mut entry = CatalogEntry::new(
        ExecutorKind::Tool,
        name,
        &description,
        Value::Object(parameters),
    );
    // Facts of the operator override those of the host.
    entry.effects = effects_of(tool, config);
    entry.idempotency = idempotency_of(tool);
    if let Some(facts) = config.effects.get(name) {
        entry.idempotency = facts.idempotency.unwrap_or(entry.idempotency);
        entry.visibility = facts.visibility;
        entry.capabilities.clone_from(&facts.capabilities);
        entry.max_parallel = facts.max_parallel;
    }
    Ok(Some(entry))
}

/// Effects of a tool: the operator's, otherwise the host's and those of remotes that use it. Empty: unknown.
fn effects_of(tool: &ToolResource, config: &Config) -> BTreeSet<Effect> {
    let facts = config.effects.get(&tool.tool_name);
    if let Some(effects) = facts.and_then(|facts| facts.effects.as_ref()) {
        return effects.clone();
    }
    let mut effects = match tool.effect {
        Some(ToolEffect::Read) => BTreeSet::from([Effect::Read]),
        Some(ToolEffect::Write) => BTreeSet::from([Effect::Write]),
        // An effect on the outside world, which needs an approval by default.
        Some(ToolEffect::Irreversible) => BTreeSet::from([Effect::External]),
        None => BTreeSet::new(),
    };
    // Without this, a direct call of the tool would bypass the approval of its remote.
    let remotes = config.remotes.iter();
    let behind = remotes.filter(|remote| remote.tool == tool.tool_name);
    effects.extend(behind.flat_map(|remote| &remote.effects));
    effects
}

/// Effects of a tool, or `unknown` without any.
pub(crate) fn effects_or_unknown(tool: &ToolResource, config: &Config) -> BTreeSet<Effect> {
    let effects = effects_of(tool, config);
    if effects.is_empty() {
        return BTreeSet::from([Effect::Unknown]);
    }
    effects
}

fn idempotency_of(tool: &ToolResource) -> Idempotency {
    match (tool.effect, tool.idempotent) {
        // A read has no effect that a repetition could double.
        (Some(ToolEffect::Read), _) | (_, Some(true)) => Idempotency::Safe,
        (_, Some(false)) => Idempotency::Unsafe,
        (_, None) => Idempotency::Unknown,
    }
}

fn knowledge() -> CatalogEntry {
    let schema = json!({
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 1},
            "top_k": {"type": "integer", "minimum": 1, "maximum": 50},
        },
        "required": ["query"],
        "additionalProperties": false,
    });
    let line = "Search the agent's knowledge bases for passages.";
    let entry = CatalogEntry::new(ExecutorKind::Tool, KNOWLEDGE, line, schema);
    entry
        .acting(&[Effect::Read], Idempotency::Safe)
        .able(&["search"])
}

/// Name of an agent in the catalogue: its display name, otherwise its id.
pub(crate) fn agent_name(agent: &AgentResource) -> &str {
    agent.display_name.as_deref().unwrap_or(&agent.agent_id)
}

fn agent_entry(agent: &AgentResource) -> Option<CatalogEntry> {
    if !agent.operations.contains(&AgentOperation::Call) {
        return None;
    }
    let schema = json!({
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "description": "The task, with all that the agent must know."},
            AUTHORITY: {"type": "object", "description": "All that it may use, by lists of names."},
        },
    });
    let line = agent.description.as_deref().unwrap_or("An agent.");
    Some(CatalogEntry::new(
        ExecutorKind::Agent,
        agent_name(agent),
        line,
        schema,
    ))
}

fn remote_entry(remote: &Remote, is_available: bool) -> CatalogEntry {
    let mut entry = CatalogEntry::new(
        remote.kind.into(),
        &remote.name,
        &remote.description,
        remote.schema.clone(),
    );
    entry.effects.clone_from(&remote.effects);
    entry.idempotency = remote.idempotency;
    entry.capabilities.clone_from(&remote.capabilities);
    entry.available = is_available;
    entry
}
