//! Built-in MCP tools for the run's own data.

use std::sync::Arc;

use domain::authorization::AuthorizationSnapshot;
use protocol::JsonObject;
use protocol::interaction::MAX_WAIT_SECONDS;
use protocol::lists::NameSet;
use protocol::resources::{AgentResources, HistoryOperation, KnowledgeOperation, ToolResource};
use rmcp::model::{CallToolResult, Tool, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::{events, history, interactions, knowledge};
use super::child_run;
use super::values::{MAX_ID_BYTES, structured, to_json};
use web::auth::{AuditedCall, RunCaller};
use web::catalog_work::run_blocking;
use web::error::{ApiError, ApiResult};
use web::json::BODY_BYTES;
use web::mcp::read_arguments;
use web::state::ApiState;

/// A built-in tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnTool {
    ListAssets,
    GetCurrentEvent,
    HistoryPage,
    RetrieveKnowledge,
    WaitForInteraction,
    ChildRun,
}

const ALL: [OwnTool; 6] = [
    OwnTool::ListAssets,
    OwnTool::GetCurrentEvent,
    OwnTool::HistoryPage,
    OwnTool::RetrieveKnowledge,
    OwnTool::WaitForInteraction,
    OwnTool::ChildRun,
];

/// Maximum characters of an interaction id.
const MAX_INTERACTION_ID: usize = 255;

/// Arguments of `list_assets`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AssetQuery {
    asset_types: NameSet<AssetType>,
    include_schemas: bool,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum AssetType {
    Models,
    Tools,
    KnowledgeBases,
    Skills,
    Agents,
}

impl AssetType {
    const ALL: [Self; 5] = [
        Self::Models,
        Self::Tools,
        Self::KnowledgeBases,
        Self::Skills,
        Self::Agents,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Models => "models",
            Self::Tools => "tools",
            Self::KnowledgeBases => "knowledge_bases",
            Self::Skills => "skills",
            Self::Agents => "agents",
        }
    }
}

impl Default for AssetQuery {
    fn default() -> Self {
        Self {
            asset_types: NameSet::from(AssetType::ALL),
            include_schemas: false,
        }
    }
}

/// Arguments of `wait_for_interaction`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct InteractionQuery {
    interaction_id: String,
    #[serde(default)]
    wait_seconds: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

impl OwnTool {
    /// Built-in tools that the run may call.
    pub(super) fn granted(snapshot: &AuthorizationSnapshot) -> impl Iterator<Item = Self> + '_ {
        ALL.into_iter().filter(|tool| match tool {
            Self::ListAssets => true,
            Self::GetCurrentEvent => snapshot.event_get().is_ok(),
            Self::HistoryPage => snapshot.history(HistoryOperation::Page).is_ok(),
            Self::RetrieveKnowledge => !retrievable(snapshot).is_empty(),
            Self::WaitForInteraction => snapshot.interaction_request().is_ok(),
            Self::ChildRun => !snapshot.resources.agents.is_empty(),
        })
    }

    /// Finds a built-in tool by name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        ALL.into_iter().find(|tool| tool.name() == name)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ListAssets => "list_assets",
            Self::GetCurrentEvent => "get_current_event",
            Self::HistoryPage => "history_page",
            Self::RetrieveKnowledge => "retrieve_knowledge",
            Self::WaitForInteraction => "wait_for_interaction",
            Self::ChildRun => child_run::NAME,
        }
    }

    /// Describes the tool for a run.
    pub(super) fn described(self, snapshot: &AuthorizationSnapshot) -> Tool {
        let ids = match self {
            Self::ChildRun => json!({"enum": child_run::names(snapshot)}),
            _ => json!({"enum": retrievable(snapshot)}),
        };
        let (description, properties) = self.form(&ids);
        let mut schema =
            json!({"type": "object", "properties": properties, "additionalProperties": false});
        if self == Self::ChildRun {
            schema["required"] = json!(child_run::REQUIRED);
        }
        let schema = schema.as_object().cloned().unwrap_or_default();
        Tool::new(self.name(), description, Arc::new(schema))
            .with_annotations(ToolAnnotations::new().read_only(self.is_read_only()))
    }

    /// True if the tool has no effects.
    pub(super) fn is_read_only(self) -> bool {
        self != Self::ChildRun
    }

    /// Description and argument schemas. `ids` is the schema of a knowledge base id or an agent name.
    pub(super) fn form(self, ids: &Value) -> (&'static str, Value) {
        match self {
            Self::ListAssets => (
                "Lists the models, tools, knowledge bases, skills and agents that this run may use.",
                json!({
                    "asset_types": {"type": "array", "items": {"enum": AssetType::ALL.map(AssetType::name)},
                        "maxItems": AssetType::ALL.len(), "description": "Only these; all when absent."},
                    "include_schemas": {"type": "boolean", "description": "With the schemas of the tools."},
                }),
            ),
            Self::GetCurrentEvent => ("Reads the event that this run answers.", json!({})),
            Self::HistoryPage => (
                "Reads the transcript of this run's conversation, a page at a time.",
                json!({
                    "conversation_id": {"type": "string", "maxLength": MAX_ID_BYTES,
                        "description": "This run's own, when it is given."},
                    "before_cursor": {"type": "string", "maxLength": BODY_BYTES},
                    "after_cursor": {"type": "string", "maxLength": BODY_BYTES},
                    "limit": {"type": "integer", "minimum": 1, "maximum": 100},
                    "direction": {"enum": ["backward", "forward"]},
                    "include_attachments": {"type": "boolean"},
                }),
            ),
            Self::RetrieveKnowledge => (
                "Finds the passages of a knowledge base that are closest to a query.",
                json!({
                    "kb_id": ids,
                    "query_text": {"type": "string", "maxLength": BODY_BYTES},
                    "top_k": {"type": "integer", "minimum": 1, "maximum": 50},
                    "filters": {"type": "object", "description": "Values of metadata that must hold."},
                }),
            ),
            Self::WaitForInteraction => (
                "Waits for a person's answer to a question of this run, and reads it.",
                json!({
                    "interaction_id": {"type": "string", "maxLength": MAX_INTERACTION_ID,
                        "description": "The id of the question."},
                    "wait_seconds": {"type": "integer", "minimum": 0, "maximum": MAX_WAIT_SECONDS,
                        "description": "How long to wait. `open` in the result: call again."},
                }),
            ),
            Self::ChildRun => child_run::form(ids),
        }
    }

    /// Calls the tool with the code of its REST route.
    pub(super) async fn call(
        self,
        caller: &RunCaller,
        state: &ApiState,
        arguments: JsonObject,
    ) -> ApiResult<CallToolResult> {
        match self {
            Self::ListAssets => {
                let query: AssetQuery = read_arguments(&arguments)?;
                let call = AuditedCall {
                    action: "list_assets",
                    resource: "run",
                    operation: "list",
                };
                caller.record(state, call, None).await?;
                let grant = Arc::clone(&caller.grant);
                // The caller already holds the catalog permit of the run.
                let list = move || assets(&grant.snapshot.resources, &query).map(structured);
                run_blocking(list).await?
            }
            Self::GetCurrentEvent => {
                let Nothing {} = read_arguments(&arguments)?;
                let event_id = caller.grant.run.event_id.clone();
                to_json(&events::read_event(caller, state, &event_id).await?).map(structured)
            }
            Self::HistoryPage => {
                let page = history::read_page(caller, state, read_arguments(&arguments)?).await?;
                to_json(&page).map(structured)
            }
            Self::RetrieveKnowledge => {
                // Part of the path on the REST route, so the query type does not have it.
                let mut query = arguments;
                let Some(Value::String(kb_id)) = query.remove("kb_id") else {
                    let message = "must be a knowledge base of this run";
                    return Err(ApiError::invalid("/kb_id", message));
                };
                let results =
                    knowledge::retrieve(caller, state, &kb_id, &read_arguments(&query)?).await?;
                to_json(&results).map(structured)
            }
            Self::WaitForInteraction => {
                let query: InteractionQuery = read_arguments(&arguments)?;
                let (id, wait) = (query.interaction_id, query.wait_seconds);
                // The wait holds no catalog permit: only messages that read the catalog run under one.
                let answer = interactions::read_answer(caller, state, &id, wait).await?;
                to_json(&answer).map(structured)
            }
            Self::ChildRun => child_run::call(caller, state, &arguments).await,
        }
    }
}

/// Knowledge bases that the run may search.
fn retrievable(snapshot: &AuthorizationSnapshot) -> Vec<&str> {
    let bases = snapshot.resources.knowledge_bases.iter();
    bases
        .filter(|base| base.operations.contains(&KnowledgeOperation::Retrieve))
        .map(|base| base.kb_id.as_str())
        .collect()
}

fn assets(resources: &AgentResources, query: &AssetQuery) -> ApiResult<Value> {
    let mut assets = JsonObject::new();
    for kind in query.asset_types.iter() {
        let items = match kind {
            AssetType::Models => to_json(&resources.models)?,
            AssetType::Tools if query.include_schemas => to_json(&resources.tools)?,
            AssetType::Tools => {
                // Only on request, because schemas are the largest part of the list.
                let tools = resources.tools.iter().map(without_schema);
                to_json(&tools.collect::<Vec<_>>())?
            }
            AssetType::KnowledgeBases => to_json(&resources.knowledge_bases)?,
            AssetType::Skills => to_json(&resources.skills)?,
            AssetType::Agents if resources.agents.is_empty() => continue,
            AssetType::Agents => to_json(&resources.agents)?,
        };
        assets.insert(kind.name().to_owned(), items);
    }
    Ok(Value::Object(assets))
}

fn without_schema(tool: &ToolResource) -> ToolResource {
    ToolResource {
        tool_name: tool.tool_name.clone(),
        tool_type: tool.tool_type.clone(),
        description: tool.description.clone(),
        operations: tool.operations.clone(),
        parameters: None,
        source: tool.source.clone(),
        effect: tool.effect,
        idempotent: tool.idempotent,
        effect_source: tool.effect_source,
        approval: tool.approval,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_repeated_asset_types_once() {
        let list = vec![json!("tools"); 1000];
        let query: AssetQuery = serde_json::from_value(json!({"asset_types": list})).unwrap();
        assert!(*query.asset_types == [AssetType::Tools]);
        let all = AssetQuery::default().asset_types;
        let names = all.iter().map(|kind| kind.name()).collect::<Vec<_>>();
        let named: AssetQuery = serde_json::from_value(json!({"asset_types": names})).unwrap();
        assert!(named.asset_types == all);
    }

    #[test]
    fn bounds_every_list_and_text_of_tools() {
        let snapshot = json!({
            "v": 1, "run_id": uuid::Uuid::nil(), "workspace_id": "default", "agent_id": uuid::Uuid::nil(),
            "agent_version": 1, "runner_id": "plugin:a/b/c", "endpoint_id": uuid::Uuid::nil(), "event_id": "e",
            "conversation": null, "resources": {}, "available_apis": {}, "operations": [], "state": {},
            "decisions": [],
        });
        let snapshot = serde_json::from_value(snapshot).unwrap();
        for tool in ALL {
            let described = tool.described(&snapshot);
            let properties = described.input_schema["properties"].as_object().unwrap();
            for (name, schema) in properties {
                let bound = match schema["type"].as_str() {
                    Some("array") => &schema["maxItems"],
                    Some("string") => &schema["maxLength"],
                    _ => continue,
                };
                assert!(bound.is_u64(), "{} of {}", name, tool.name());
            }
        }
    }
}
